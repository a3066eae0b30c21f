"""The KV events of the host tier in a real vLLM. Run as test_served_models.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import vllm_tiny_models as tiny_models
from vllm_served_mix import Engine

pytest.importorskip("vllm", reason="the engine's python runs these")


def test_events_of_the_host_name_the_blocks_that_vllm_names(tmp_path: Path) -> None:
    tiny_models.save_llama(tmp_path)
    engine = Engine(
        "llama", tmp_path, settings={"host_gib": 0.05}, kv_events_config={"enable_kv_cache_events": True, "publisher": "null"}
    )
    tokens = [3 + number * 7 % 500 for number in range(4 * engine.page + 5)]
    scheduler = engine.core.scheduler
    own: list[Any] = []
    host: list[Any] = []
    take, take_host = scheduler.kv_cache_manager.take_events, scheduler.connector.take_events
    with (
        mock.patch.object(scheduler.kv_cache_manager, "take_events", side_effect=lambda: kept(take(), own)),
        mock.patch.object(scheduler.connector, "take_events", side_effect=lambda: kept(take_host(), host)),
    ):
        engine.add(tokens)
        engine.run()
    described = [
        [
            (each.block_hashes[place], each.token_ids[place * each.block_size : (place + 1) * each.block_size],
             each.block_size, each.group_idx, each.kv_cache_spec_kind, getattr(each, "lookahead_token_ids", None))
            for each in events for place in range(len(each.block_hashes))
        ]
        for events in (own, host)
    ]  # fmt: skip
    assert described[0][: len(described[1])] == described[1]
    assert len(described[1]) == 4
    assert {each.medium for each in host} == {"CPU"}
    engine.core.shutdown()


def kept(events: Any, into: list[Any]) -> Any:
    """Remember events that are taken."""
    into += [each for each in events or () if type(each).__name__ == "BlockStored"]
    return events
