"""KV events as vLLM and SGLang publish them."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from unified_tree.controllers.workbench.recorder.block_hashes import BlockHasher, token_bytes
from unified_tree.controllers.workbench.recorder.kv_events import (
    MISSED,
    ORPHAN,
    UNREADABLE_EVENT,
    EventSubscription,
    EventTrace,
)
from unified_tree.controllers.workbench.recorder.trace_writer import TraceLine
from unified_tree.controllers.workbench.traces.trace_files import read_records
from unified_tree.terms.errors import ConfigurationError

BLOCK = 3
PROMPT = list(range(12))


class Listener:
    def __init__(self, **given: Any) -> None:
        self.lost: Counter[str] = Counter()
        self.trace = EventTrace(BlockHasher(BLOCK), self.lose, **given)
        self.ended: list[TraceLine] = []

    def lose(self, reason: str) -> None:
        self.lost[reason] += 1

    def hear(self, *events: Any, at: float = 0.0, rank: int = 0) -> None:
        self.ended += self.trace.batch([at, list(events), rank])

    def end(self) -> list[TraceLine]:
        self.ended += self.trace.end()
        return self.ended


def stored(hashes: list[Any], tokens: list[Any], parent: Any = None, **given: Any) -> dict[str, Any]:
    size = len(tokens) // len(hashes)
    event = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens}
    return {**event, "block_size": size, "lora_id": None, "medium": "GPU", **given}


def told(line: TraceLine) -> tuple[int, int | None, list[int]]:
    return line.prompt_tokens, line.cached_tokens, line.ids


def ids(tokens: list[int], namespace: str = "") -> list[int]:
    return BlockHasher(BLOCK).ids(token_bytes(tokens), namespace)


def test_a_path_that_grows_is_one_request_and_a_branch_another() -> None:
    listener = Listener()
    listener.hear(stored([1, 2], PROMPT[:8]), at=10.0)
    listener.hear(stored([3], PROMPT[8:], 2), at=11.0)
    listener.hear(stored([b"x"], [50, 51, 52, 53], 1), at=12.0)
    listener.hear({"type": "BlockRemoved", "block_hashes": [3], "medium": "GPU"}, at=13.0)
    assert not listener.ended
    listener.hear(at=16.5)
    assert [told(line) for line in listener.ended] == [(12, 0, ids(PROMPT))]
    assert listener.ended[0].time_ms == 10_000
    assert told(listener.end()[1]) == (8, 4, ids([*PROMPT[:4], 50, 51, 52, 53]))
    assert not listener.lost


def test_older_events_are_arrays_and_have_the_same_ids() -> None:
    listener = Listener()
    listener.hear(["BlockStored", [7], None, PROMPT, 12, None, "GPU"], ["AllBlocksCleared"], ["BlockRemoved", [7], "GPU"])
    assert [told(line) for line in listener.end()] == [(12, 0, ids(PROMPT))]


def test_pairs_adapters_ranks_and_pictures() -> None:
    listener = Listener()
    listener.hear(stored([1], [[token, token + 1] for token in PROMPT]), stored([2], PROMPT, lora_name="fox"))
    listener.hear(stored([1], PROMPT), rank=1)
    for at, picture in ((3, "a"), (4, "b"), (5, "a")):
        listener.hear(stored([at], PROMPT, extra_keys=[[picture]]))
    found = [line.ids for line in listener.end()]
    assert found[0] == found[2] == ids(PROMPT)
    assert found[1] == ids(PROMPT, "(None, None, 'fox')")
    assert found[3] == found[5] != found[4]


def test_copies_and_other_groups_are_no_requests() -> None:
    listener = Listener()
    listener.hear(stored([1], PROMPT, medium="CPU_PINNED"), stored([1], PROMPT, group_idx=1), {"type": "New"})
    assert listener.end() == [] and not listener.lost


def test_what_goes_on_from_an_unknown_block_is_counted() -> None:
    listener = Listener(known_blocks=2)
    listener.hear(stored([9], PROMPT, 8))
    listener.hear(stored([1, 2], PROMPT), stored([3], PROMPT, 2))
    assert listener.end() == []
    assert listener.lost == {ORPHAN: 2}, "the path's first block is forgotten"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)
EVENT = st.fixed_dictionaries(
    {
        "type": st.just("BlockStored"),
        "block_hashes": JSON | st.just([1]),
        "token_ids": JSON | st.just([1, 2]),
        "block_size": JSON,
    },
    optional={"parent_block_hash": JSON, "extra_keys": JSON, "medium": st.none()},
)


@given(st.lists(JSON | st.tuples(st.floats(0, 1e9), st.lists(JSON | EVENT, max_size=3)).map(list), max_size=4))
def test_any_batch_can_be_heard(batches: list[Any]) -> None:
    listener = Listener()
    for batch in batches:
        listener.trace.batch(batch)
    listener.end()


@pytest.mark.parametrize("form", ["msgpack", "lists", "objects"])
def test_a_file_of_batches(tmp_path: Path, form: str) -> None:
    batches = [[1.0, [stored([1], PROMPT)], 0], [2.0, [stored([2], PROMPT, 1)], 0]]
    path = tmp_path / "events"
    if form == "msgpack":
        path.write_bytes(b"".join(map(msgpack.packb, batches)))
    else:
        objects = [{"ts": batch[0], "events": batch[1]} for batch in batches]
        path.write_text("\n".join(map(json.dumps, batches if form == "lists" else objects)))
    listener = Listener()
    for record in read_records(path):
        listener.ended += listener.trace.batch(record.fields)
    assert [told(line) for line in listener.end()] == [(24, 0, ids(PROMPT * 2))]


def test_a_subscription_counts_what_it_missed() -> None:
    lost: Counter[str] = Counter()

    def lose(reason: str) -> None:
        lost[reason] += 1

    context = zmq.Context()
    publisher = context.socket(zmq.XPUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    subscription = EventSubscription(f"tcp://127.0.0.1:{port}", lose)
    try:
        assert publisher.poll(20_000) and publisher.recv()[0] == 1, "it has subscribed"
        batch = msgpack.packb([1.0, [stored([b"\xff"], PROMPT)], 0])
        for number, payload in ((5, batch), (8, batch), (9, b"\xc1")):
            publisher.send_multipart([b"", number.to_bytes(8, "big"), payload])
        publisher.send_multipart([b"odd"])
        heard = [subscription.take(20.0) for _ in range(4)]
        assert heard[0] == heard[1] == [1.0, [stored([b"\xff"], PROMPT)], 0] and heard[2:] == [None, None]
        assert lost == {MISSED: 2, UNREADABLE_EVENT: 2}
        assert subscription.take(0.0) is None
    finally:
        subscription.close()
        publisher.close(0)
        context.term()


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no address of a publisher"):
        EventSubscription("nowhere", lambda _: None)
