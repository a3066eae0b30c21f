"""Drafts that the connector refuses at the start, by name. Run as test_served_models.py; it starts no engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from unified_tree import ConfigurationError, Path, Point
from unified_tree.controllers.adapters.vllm import BlockGroup

pytest.importorskip("vllm", reason="the engine's python runs these")


def refusal(method: str | None, *, stages: int = 1, ahead: int = 1, parallel: bool = False, coverage: Any = None) -> str:
    """Why the connector does not start with drafts; empty if it does."""
    from unified_tree.controllers.adapters.vllm.engine_config import refuse_unsupported

    config = SimpleNamespace(
        parallel_config=SimpleNamespace(
            pipeline_parallel_size=stages, decode_context_parallel_size=1, prefill_context_parallel_size=1
        ),
        speculative_config=None if method is None else SimpleNamespace(method=method, parallel_drafting=parallel),
        num_prefill_lookahead_tokens=ahead,
        kv_transfer_config=SimpleNamespace(kv_role="kv_both"),
    )
    group = BlockGroup(index=0, coverage=coverage or Path(), layer_names=("a",), block_bytes=8)
    try:
        refuse_unsupported(config, [group])
    except ConfigurationError as error:
        return str(error)
    return ""


def test_drafts_that_are_not_served_are_refused_by_name() -> None:
    assert not any(refusal(method) for method in (None, "ngram", "suffix", "draft_model", "eagle", "eagle3", "mtp"))
    assert "speculative decoding by medusa: served are ngram" in refusal("medusa")
    assert "read more than one token behind a block" in refusal("mtp", ahead=3)
    assert "draft several tokens in one pass" in refusal("eagle3", parallel=True)
    assert "with recurrent states" in refusal("draft_model", coverage=Point())
    assert "with pipeline stages" in refusal("ngram", stages=2)
    assert not refusal(None, stages=2)
