"""The published `config.json` of the built-in models, cut down to what decides the cache: numbers and layer schedules.

Where the defaults of a `transformers` 5.23 class are those of the checkpoint, the numbers were checked against them:
GPT-OSS-120b, Qwen3-Next, Kimi-Linear, DeepSeek-V3.2, GLM-5, MiMo-V2-Flash, DeepSeek-V4-Flash. The layer schedules of
DeepSeek-V4-Flash and Kimi-Linear and the KV heads of MiMo-V2-Flash were checked against public discussions that quote the
released files. The rest (Llama-3.1, Qwen3-32B, GPT-OSS-20b, Gemma-3-27b, Nemotron-H-8B) was written down from knowledge of the
released files, which could not be fetched; their weights add up to the published sizes, and Nemotron-H's pattern to its
paper's 24 Mamba2, 24 MLP and 4 attention layers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MODEL_FACTS: Mapping[str, Mapping[str, Any]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
"""The fields of each built-in model, by name."""
