"""Session traces: scopes of ids, sub-agents, clocks, chains."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from unified_tree.controllers.workbench.traces.trace import TraceOptions, read_trace
from unified_tree.controllers.workbench.traces.workload import Workload
from unified_tree.terms.errors import TraceError

Write = Callable[..., Path]
"""Writes sessions to a file; `name` by keyword."""


def turn(t: object, in_tokens: int, ids: Iterable[int], out: int = 5) -> dict[str, Any]:
    return {"t": t, "in": in_tokens, "out": out, "hash_ids": list(ids), "type": "n"}


def session(*requests: object, **fields: object) -> dict[str, Any]:
    return {"id": "s", "block_size": 64, "hash_id_scope": "local", "requests": list(requests), **fields}


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(*sessions: object, name: str = "sessions.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(one) + "\n" for one in sessions))
        return path

    return write


def test_runs_and_plain_ids_say_the_same(write: Write) -> None:
    ids = [1, 2, 3, 9, 10, 4]
    plain = read_trace(write(session(turn(0, 400, ids)))).requests[0]
    packed = turn(0, 400, ()) | {"hash_runs": [1, 3, 9, 2, 4, 1]}
    del packed["hash_ids"]
    runs = read_trace(write(session(packed), name="packed")).requests[0]
    assert plain.blocks().tolist() == runs.blocks().tolist() == ids
    assert plain.shared_tokens == 384
    assert plain.prompt_tokens == 400


def test_local_ids_do_not_meet_across_sessions_and_global_ones_do(write: Write) -> None:
    local = read_trace(write(session(turn(0, 128, [1, 2])), session(turn(0, 128, [1, 2]))))
    first, second = (set(request.blocks().tolist()) for request in local.requests)
    assert not first & second
    shared = [session(turn(0, 128, [1, 2]), hash_id_scope="global") for _ in range(2)]
    both = read_trace(write(*shared, name="global"))
    assert both.requests[0].blocks().tolist() == both.requests[1].blocks().tolist()


def noted(workload: Workload) -> str:
    """The note about sub-agents."""
    (note,) = (note for note in workload.notes if "sub-agents" in note)
    return note.removesuffix("; --sub-agent-clock overrides")


def agents(*times: float) -> dict[str, Any]:
    """A session with a sub-agent at 100.5 s whose turns are at these times."""
    turns = [turn(at, 64 * (i + 1), [1, 8][: i + 1]) for i, at in enumerate(times)]
    return session(turn(0, 64, [1]), {"t": 100.5, "type": "subagent", "requests": turns}, turn(110, 128, [1, 2]))


def test_a_sub_agent_that_counts_from_its_own_start(write: Write) -> None:
    workload = read_trace(write(agents(0, 30)))
    assert [request.arrival_s for request in workload.requests] == [0.0, 100.5, 110.0, 130.5]
    assert workload.requests[0].chain == workload.requests[2].chain != workload.requests[1].chain
    assert workload.requests[1].chain == workload.requests[3].chain
    assert len({request.blocks()[0] for request in workload.requests}) == 1, "it shares the session's ids"
    assert (
        "times of sub-agents count from their own start, for some are before it; --sub-agent-clock overrides" in workload.notes
    )


def test_a_sub_agent_that_counts_from_the_sessions_start(write: Write) -> None:
    workload = read_trace(write(agents(100.5, 130.5)))
    assert [request.arrival_s for request in workload.requests] == [0.0, 100.5, 110.0, 130.5]
    assert (
        "times of sub-agents count from the session's start, for none is before its agent's; --sub-agent-clock overrides"
        in workload.notes
    )


def test_one_early_turn_shows_it_for_the_whole_file(write: Write) -> None:
    path = write(agents(150), agents(0))
    gaps: dict[str, Any] = {"session_gap_s": 0}
    assert 250.5 in [request.arrival_s for request in read_trace(path, TraceOptions(**gaps)).requests]
    given = read_trace(path, TraceOptions(sub_agent_clock="root", **gaps))
    assert sorted(request.arrival_s for request in given.requests) == [0.0, 0.0, 0.0, 110.0, 110.0, 150.0]
    assert any("as given" in note for note in given.notes)


def test_session_starts_are_spread_by_a_seed(write: Write) -> None:
    path = write(*(session(turn(7, 64, [1])) for _ in range(40)))

    def starts(**options: Any) -> list[float]:
        return [request.arrival_s for request in read_trace(path, TraceOptions(**options)).requests]

    assert starts(session_gap_s=0) == [7.0] * 40
    spread = starts(session_gap_s=10, seed=3)
    assert spread[0] == 7.0
    assert 100 < spread[-1] < 1000
    assert spread == starts(session_gap_s=10, seed=3) != starts(session_gap_s=10, seed=4)


def test_the_wrong_session_is_named(write: Write) -> None:
    good = session(turn(0, 64, [1]))
    cases = {
        "requests[0].in is missing": session({"t": 0, "out": 1, "hash_ids": []}),
        "requests[1].requests[0].t must be": session(turn(0, 64, [1]), {"t": 3, "requests": [turn("x", 64, [1])]}),
        "requests must be a list": {**good, "requests": 3},
        "requests is missing": {"id": "s", "block_size": 64},
        "block_size is missing": {"id": "s", "requests": []},
        "requests[0] is no JSON object": {**good, "requests": [7]},
        "hash_runs must be pairs": session({"t": 0, "in": 64, "out": 1, "hash_runs": [1, 0]}),
        "requests[0].hash_ids is missing": session({"t": 0, "in": 64, "out": 1}),
    }
    for i, (says, bad) in enumerate(cases.items()):
        path = write(good, bad, name=f"bad{i}.jsonl")
        with pytest.raises(TraceError) as error:
            read_trace(path)
        assert str(error.value).startswith(f"{path}:2: ")
        assert says in str(error.value)


def test_most_requests_cuts_within_a_session(write: Write) -> None:
    path = write(*(session(turn(0, 64, [1]), turn(1, 64, [1])) for _ in range(5)))
    assert len(read_trace(path, TraceOptions(max_requests=3)).requests) == 3
