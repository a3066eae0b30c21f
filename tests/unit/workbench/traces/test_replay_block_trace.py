"""Block traces: what is shared, what is a request's own, and what an error says."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unified_tree.controllers.workbench.traces.trace import TraceOptions, read_trace
from unified_tree.controllers.workbench.traces.workload import OWN_TOKENS
from unified_tree.terms.errors import TraceError

Write = Callable[..., Path]
"""Writes records (objects, or raw lines) to a file; `name` and `zipped` by keyword."""


def line(
    timestamp: object = 0,
    input_length: object = 1024,
    output_length: object = 10,
    hash_ids: Iterable[object] = (0, 1),
    **extra: object,
) -> dict[str, object]:
    return {
        "timestamp": timestamp,
        "input_length": input_length,
        "output_length": output_length,
        "hash_ids": list(hash_ids),
        **extra,
    }


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(*records: object, name: str = "trace.jsonl", zipped: bool = False) -> Path:
        text = "".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records).encode()
        path = tmp_path / name
        path.write_bytes(gzip.compress(text) if zipped else text)
        return path

    return write


def test_tokens_of_a_block_carry_its_id_and_the_rest_is_the_requests_own(write: Write) -> None:
    first, second = read_trace(
        write(line(input_length=1100, hash_ids=[0, 1, 2]), line(input_length=1100, hash_ids=[0, 1, 2]))
    ).requests
    tokens = first.tokens()
    assert tokens.size == 1100 + 10
    assert tokens.dtype == np.int64
    assert first.shared_tokens == 1024
    assert (tokens[:512] == 0).all()
    assert (tokens[512:1024] == 1).all()
    assert (tokens[1024:] == OWN_TOKENS).all(), "the partly filled last block and the answer"
    assert (second.tokens()[:1024] == tokens[:1024]).all()
    assert (second.tokens()[1024:] != tokens[1024:]).all()


def test_arrivals_are_milliseconds_after_the_first_request_in_order(write: Write) -> None:
    workload = read_trace(write(line(timestamp=5000), line(timestamp=3500, hash_ids=[7, 8]), line(timestamp=5000)))
    assert [request.arrival_s for request in workload.requests] == [0.0, 1.5, 1.5]
    assert [request.index for request in workload.requests] == [0, 1, 2]
    assert workload.requests[0].blocks().tolist() == [7, 8]


def test_timestamps_may_be_strings(write: Write) -> None:
    workload = read_trace(write(line(timestamp="82"), line(timestamp="1082.5")))
    assert [request.arrival_s for request in workload.requests] == [0.0, 1.0005]
    with pytest.raises(TraceError, match="timestamp must be a number"):
        read_trace(write(line(timestamp="soon")))


def test_fewer_ids_than_blocks_leave_a_longer_rest(write: Write) -> None:
    (request,) = read_trace(write(line(input_length=5000, hash_ids=[3]))).requests
    assert request.shared_tokens == 512
    assert request.tokens().size == 5010


def test_ids_past_the_prompt_are_left_out_and_noted(write: Write) -> None:
    workload = read_trace(write(line(), line(), line(input_length=600, hash_ids=[0, 1, 2, 3])))
    assert workload.requests[2].blocks().tolist() == [0]
    assert any("1 requests list more blocks" in note for note in workload.notes)


def test_block_size_is_declared_inferred_or_given(write: Write) -> None:
    assert read_trace(write(line(block_size=256, input_length=512))).requests[0].block_tokens == 256
    short_blocks = [line(input_length=100 + i, hash_ids=range(7)) for i in range(5)]
    assert read_trace(write(*short_blocks)).requests[0].block_tokens == 16
    assert read_trace(write(line()), TraceOptions(block_tokens=64)).requests[0].shared_tokens == 128


def test_what_follows_a_block_that_is_there_twice_is_left_out(write: Write) -> None:
    runs = {**line(input_length=512 * 6), "hash_runs": [4, 3, 9, 1, 6, 2]}
    path = write(line(input_length=1536, hash_ids=[4, 5, 4]), runs, line(input_length=1100, hash_ids=[1, 2, 2]))
    workload = read_trace(path)
    assert [request.blocks().size for request in workload.requests] == [2, 4, 2]
    assert "2 requests list a block twice; from there on their blocks were left out" in workload.notes
    assert workload.requests[0].prompt_tokens == 1536


def test_sparse_ids_become_dense(write: Write) -> None:
    ids = [(1 << 62) + 5, 17, (1 << 62) + 9]
    workload = read_trace(write(line(input_length=1536, hash_ids=ids), line(hash_ids=ids[1:])))
    assert workload.block_count == 3
    first, second = (request.blocks().tolist() for request in workload.requests)
    assert len(set(first)) == 3
    assert second == first[1:]


def test_gzip_is_known_by_content_and_extra_fields_are_ignored(write: Write) -> None:
    records = [line(chat_id="x", turn=[1, {"a": None}]), line(timestamp=9)]
    plain = read_trace(write(*records, name="a.gz"))
    zipped = read_trace(write(*records, name="b.jsonl", zipped=True))
    assert [r.arrival_s for r in plain.requests] == [r.arrival_s for r in zipped.requests] == [0.0, 0.009]


def test_most_requests_ends_the_reading_early(write: Write) -> None:
    path = write(line(), line(), "not JSON")
    assert len(read_trace(path, TraceOptions(max_requests=2)).requests) == 2


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ('{"timestamp": 0, "input_length": 5', "is not JSON"),
        ("[1, 2]", "is no JSON object: 1"),
        ("17", "is no JSON object: 17"),
        (b"\xff\xfe".decode("latin-1"), "is not JSON"),
        ({"timestamp": 0, "output_length": 1, "hash_ids": []}, "input_length is missing"),
        (line(timestamp="soon"), 'timestamp must be a number of zero or more: "soon"'),
        (line(timestamp=-1), "timestamp must be a number of zero or more: -1"),
        ('{"timestamp": NaN, "input_length": 5, "output_length": 1, "hash_ids": []}', "timestamp must be a number"),
        (line(input_length=-5), "input_length must be an integer from 0"),
        (line(input_length=12.5), "input_length must be an integer from 0"),
        (line(input_length=1 << 40), "input_length must be an integer from 0"),
        (line(output_length=True), "output_length must be an integer from 0"),
        ({**line(), "hash_ids": 7}, "hash_ids must be a list of integers"),
        (line(hash_ids=[1, "2"]), 'hash_ids must be a list of integers of zero or more, below 2**63: "2"'),
        (line(hash_ids=[1, -2]), "hash_ids must be a list of integers of zero or more, below 2**63: -2"),
        (line(hash_ids=[1 << 63]), "hash_ids must be a list of integers"),
        (line(block_size=0), "block_size must be an integer from 1"),
    ],
)
def test_a_bad_line_is_named(write: Write, bad: Any, says: str) -> None:
    path = write(line(), line(), bad, line())
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert str(error.value).startswith(f"{path}:3: ")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_files_that_hold_no_trace(tmp_path: Path, write: Write) -> None:
    with pytest.raises(TraceError, match=r"absent\.jsonl: cannot be read: No such file"):
        read_trace(tmp_path / "absent.jsonl")
    with pytest.raises(TraceError, match="holds no requests"):
        read_trace(write())
    with pytest.raises(TraceError, match=r":1: .* is of no known kind"):
        read_trace(write({"prompt": "hello"}))
    broken = tmp_path / "cut.gz"
    broken.write_bytes(gzip.compress(b'{"timestamp": 0}\n' * 4000)[:40])
    with pytest.raises(TraceError, match=r"cut\.gz.*cannot be read"):
        read_trace(broken)
