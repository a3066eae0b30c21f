"""Defaults of the configuration classes of language models that sit inside other models, from `transformers` 5.23.

A file leaves out of a nested configuration what equals its class's default, so there, and only there, a missing field has a
defined meaning. Fields that decide what is cached or what a token costs only. The tables are in `class_defaults.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TABLES: Mapping[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

WRAPPED: Mapping[str, str] = _TABLES["wrapped"]
"""Models of vision and audio, and the language model that is inside where the file does not name it."""

CLASS_DEFAULTS: Mapping[str, Mapping[str, Any]] = _TABLES["defaults"]
"""By `model_type`."""

STATED: Mapping[str, frozenset[str]] = {name: frozenset(types) for name, types in _TABLES["stated"].items()}
"""Fields, and the types whose class has a number of its own for them: a file of such a type must state them."""
