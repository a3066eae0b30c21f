"""Block traces: what is shared, what is a request's own, and what an error says."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from unified_tree.controllers.workbench.traces.block_ids import densify
from unified_tree.controllers.workbench.traces.trace import TraceOptions, read_trace
from unified_tree.controllers.workbench.traces.workload import OWN_TOKENS, expand_runs, pack_runs
from unified_tree.terms.errors import TraceError

Write = Callable[..., Path]
"""Writes records (objects, or raw lines) to a file; `name` by keyword."""


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
    def write(*records: object, name: str = "trace.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join((record if isinstance(record, str) else json.dumps(record)) + "\n" for record in records))
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


def test_ids_of_contents_are_numbered_by_what_comes_before_them(write: Write) -> None:
    runs = {**line(input_length=512 * 5), "hash_runs": [4, 2, 9, 1, 4, 2]}
    path = write(line(input_length=1536, hash_ids=[4, 5, 4]), runs, line(input_length=1024, hash_ids=[5, 4]))
    first, second, third = (request.blocks().tolist() for request in read_trace(path).requests)
    assert first[:2] == second[:2]
    assert [len(set(each)) for each in (first, second, third)] == [3, 5, 2], "a block that is there twice is two"
    assert not set(third) & {*first, *second}, "it begins otherwise"


def test_ids_are_strings_or_integers_of_any_size(write: Write) -> None:
    one, two = 1 << 63, -(1 << 70)
    path = write(line(hash_ids=[3, one]), line(hash_ids=["3", str(one)]), line(hash_ids=[3, two]), line(hash_ids=["x", 3]))
    first, second, third, fourth = (request.blocks().tolist() for request in read_trace(path).requests)
    assert first == second
    assert (third[0], len({*first, *third})) == (first[0], 3)
    assert not set(fourth) & set(first)


@pytest.mark.parametrize(
    ("given", "unit", "seconds"),
    [
        ([0, 1500], None, 1.5),
        ([0, 1500], "s", 1500.0),
        ([0, 1500], "us", 0.0015),
        ([1_764_363_000, 1_764_363_060], None, 60.0),
        ([1_764_363_000_000_000_000, 1_764_363_060_000_000_000], None, 60.0),
        (["2026-11-28T21:07:57Z", "2026-11-28T21:08:57Z"], None, 60.0),
        (["82", "1082.5"], None, 1.0005),
    ],
)
def test_the_clock_is_told_and_can_be_given(write: Write, given: list[object], unit: str | None, seconds: float) -> None:
    workload = read_trace(write(*(line(timestamp=each) for each in given)), TraceOptions(clock_unit=unit))
    assert workload.requests[1].arrival_s == seconds
    (note,) = (note for note in workload.notes if note.startswith("timestamp"))
    assert ("as given" in note) == (unit is not None)
    assert ("since 1970" in note) == (type(given[0]) is int and given[0] > 0)


UNIX_S = 1_764_363_000
DATE = "2026-11-28T21:07:57Z"


@pytest.mark.parametrize(
    ("times", "says"),
    [
        ([UNIX_S, UNIX_S * 1000], "timestamp is decades from the first time of the trace, read in seconds: "),
        ([UNIX_S * 1000, UNIX_S], "timestamp is decades from the first time of the trace, read in milliseconds: "),
        ([0, DATE], "timestamp is decades from the first time of the trace: "),
        ([DATE, 5000], "timestamp is decades from the first time of the trace, read in "),
        ([UNIX_S, None], "timestamp is missing, but a record before has a time; this one has: ["),
        ([None, UNIX_S], "timestamp is given here, but a record before has no time: "),
    ],
)
@pytest.mark.parametrize(
    "fields",
    [
        {"input_length": 64, "hash_ids": [1]},
        {"input_length": 64, "output_length": 1},
        {"messages": [{"role": "user", "content": "Hello"}]},
    ],
)
def test_times_of_two_kinds_are_refused(write: Write, times: list[object], says: str, fields: dict[str, object]) -> None:
    path = write(*(fields if each is None else {"timestamp": each, **fields} for each in times))
    with pytest.raises(TraceError) as error:
        read_trace(path)
    assert str(error.value).startswith(f"{path}:2: {says}")


def test_a_trace_without_a_clock_is_replayed_one_by_one(write: Write) -> None:
    workload = read_trace(write(*({"block_size": 64, "hash_ids": [1, 2], "input_length": 128} for _ in range(3))))
    assert {(request.arrival_s, request.chain) for request in workload.requests} == {(0.0, 0)}


def test_turns_of_a_session_wait_for_the_one_before(write: Write) -> None:
    later = {name: value for name, value in line(session_id="a", delay=2500).items() if name != "timestamp"}
    workload = read_trace(write(line(session_id="a"), later, line(session_id="b", timestamp=4000)))
    assert [(request.arrival_s, request.chain) for request in workload.requests] == [(0.0, 0), (2.5, 0), (4.0, 1)]


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
        (line(timestamp="soon"), 'timestamp must be a number of zero or more, or a date as in ISO 8601: "soon"'),
        (line(timestamp=-1), "timestamp must be a number of zero or more, or a date as in ISO 8601: -1"),
        ('{"timestamp": NaN, "input_length": 5, "output_length": 1, "hash_ids": []}', "timestamp must be a number"),
        (line(input_length=-5), "input_length must be an integer from 0"),
        (line(input_length=12.5), "input_length must be an integer from 0"),
        (line(input_length=1 << 40), "input_length must be an integer from 0"),
        (line(output_length=True), "output_length must be an integer from 0"),
        ({**line(), "hash_ids": 7}, "hash_ids must be a list: 7"),
        (line(hash_ids=[1, 2.5]), "hash_ids must be a list of integers or strings: 2.5"),
        (line(hash_ids=[1, None]), "hash_ids must be a list of integers or strings: null"),
        (line(hash_ids=[True]), "hash_ids must be a list of integers or strings: true"),
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
    with pytest.raises(TraceError, match=r":1: .* is of no known format; nearest is Bailian traces?, without"):
        read_trace(write({"chat_id": 1, "timestamp": 5, "input_length": 7}))
    broken = tmp_path / "cut.gz"
    broken.write_bytes(gzip.compress(b'{"timestamp": 0}\n' * 4000)[:40])
    with pytest.raises(TraceError, match=r"cut\.gz.*cannot be read"):
        read_trace(broken)


def test_blocks_that_end_in_an_answer_are_shared_with_the_prompt_that_goes_on(write: Write) -> None:
    first, second = read_trace(
        write(
            line(0, 100, 40, [7], block_size=64, output_hash_ids=[8]),
            line(9, 150, 0, [7, 8], block_size=64),
        )
    ).requests
    assert (first.blocks().tolist(), second.blocks().tolist()) == ([7], [7, 8])
    assert (first.tokens()[:128] == second.tokens()[:128]).all(), "the end of the prompt is in the answer's first block"
    assert (first.tokens()[128:] == OWN_TOKENS).all()
    assert first.tokens().size == 140


def test_answers_beyond_their_length_or_behind_a_cut_prompt_are_left_out(write: Write) -> None:
    long, cut, other = read_trace(
        write(
            line(0, 100, 40, [7], block_size=64, output_hash_ids=[8, 9, 10]),
            line(1, 300, 40, [7], block_size=64, output_hash_ids=[8]),
            line(2, 100, 40, [7], block_size=64, output_hash_ids=[8]),
        ),
    ).requests
    assert long.answer_runs is not None
    assert long.answer_runs.tolist() == [8, 1]
    assert cut.answer_runs is None
    assert other.answer_runs is not None
    larger = read_trace(
        write(line(0, 100, 40, [7], block_size=64, output_hash_ids=[8]), name="b.jsonl"), TraceOptions(block_tokens=32)
    )
    assert larger.requests[0].answer_runs is None, "blocks of another size than the file says"


IDS = st.one_of(st.integers(0, 6), st.integers(-3, 3), st.sampled_from([(1 << 63) - 1, -(1 << 63), 1 << 62]))


def common(one: list[int], other: list[int]) -> int:
    """How many ids two lists begin with alike."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@given(st.lists(st.lists(IDS, max_size=6), max_size=5), st.integers(0, 9))
@example([[0, 1, 2], [0, 2], [0, 1, 2, 3]], 0)
@example([[1, 2, 1, 2]], 5)
@example([[5, 6], [6]], 0)
@example([[(1 << 63) - 1] * 2, [(1 << 63) - 1, -(1 << 63)]], 0)
def test_requests_begin_alike_as_far_as_they_did(scope: list[list[int]], base: int) -> None:
    runs, end = densify([pack_runs(np.array(ids, np.int64)) for ids in scope], base)
    dense = [expand_runs(each).tolist() for each in runs]
    assert [len(ids) for ids in dense] == [len(ids) for ids in scope]
    assert all(base <= block < end for ids in dense for block in ids)
    for i, ids in enumerate(dense):
        assert len(set(ids)) == len(ids), "a block stands for all that comes before it"
        for other, given_ids in zip(dense[:i], scope, strict=False):
            assert common(ids, other) == common(scope[i], given_ids)
            assert set(ids) & set(other) == set(ids[: common(ids, other)])
