"""Imported by the process from which servers are forked: all modules that they need, those of the models too."""

from __future__ import annotations

import two_servers  # noqa: F401
from oracle.families import FAMILIES
from oracle.tiny_model import tiny_config
from transformers import AutoModelForCausalLM

for name in ("Gemma 3", "Bamba", "Qwen3-Next", "GPT-OSS"):
    assert AutoModelForCausalLM._model_mapping[type(tiny_config(FAMILIES[name]))]  # imports its module
