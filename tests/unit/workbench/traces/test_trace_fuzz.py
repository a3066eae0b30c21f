"""Any records with the fields of any format: read, or refused in one line that names the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unified_tree.controllers.workbench.traces.trace import FORMATS, TraceOptions, read_trace
from unified_tree.controllers.workbench.traces.workload import Workload
from unified_tree.terms.errors import TraceError

INNER = (
    "content", "conversation", "delay", "duration", "event", "events", "from", "hash_runs", "id", "in", "out", "payload",
    "prompt_token_ids", "role", "start_times", "t", "texts", "timestamp", "tool_calls", "type", "usage", "value",
)  # fmt: skip
NAMES = sorted({name for each in FORMATS for name in each.fields} | set(INNER))
LEAVES: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 40), st.floats(),
    st.sampled_from([1 << 26, 1 << 40, 1 << 63, -(1 << 70), 10**30]),
    st.sampled_from(["user", "assistant", "a", "", "7", "2026-11-28T21:00:00Z", "BlockStored", "request_end", "\ud800", "\n"]),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.sampled_from(NAMES), inner, max_size=5)),
    max_leaves=12,
)


@st.composite
def records(draw: st.DrawFn) -> dict[str, Any]:
    """A record that has all the fields of a format, and some others."""
    form = draw(st.sampled_from(FORMATS))
    fields = {name: draw(VALUES) for name in form.fields if draw(st.integers(0, 9))}
    return fields | draw(st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=2))


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "trace"


@settings(max_examples=120, suppress_health_check=list(HealthCheck))
@given(st.lists(records(), min_size=1, max_size=4), st.sampled_from(["\n", ",", "\n\n"]), st.integers(0, 3))
def test_any_records_are_read_or_refused_in_a_line(file: Path, given_: list[dict[str, Any]], between: str, cut: int) -> None:
    text = between.join(json.dumps(each) for each in given_)
    text = f"[{text}]" if between == "," else text
    file.write_text(text[: len(text) - cut] if cut == 3 else text)
    for options in (TraceOptions(), TraceOptions(block_tokens=1, max_requests=2, sub_agent_clock="root", clock_unit="ns")):
        try:
            workload = read_trace(file, options)
        except TraceError as error:
            refused = str(error)
        else:
            check(workload)
            continue
        assert refused.startswith(f"{file}")
        assert "\n" not in refused


def check(workload: Workload) -> None:
    """Laws that every workload keeps."""
    for i, request in enumerate(workload.requests):
        assert request.index == i
        assert request.arrival_s >= 0
        assert request.shared_tokens <= request.prompt_tokens
        assert all(block < workload.block_count for block in request.blocks()[:1000])
