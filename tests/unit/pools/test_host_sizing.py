"""Host page counts: within the budget, enough for every kind, and as given where given."""

from __future__ import annotations

from typing import Any

import pytest

from unified_tree import ConfigurationError
from unified_tree.components import composition_for, model_names
from unified_tree.controllers.pools import formats_of, propose_page_counts
from unified_tree.controllers.pools.host_layout import HostLayout, place
from unified_tree.declare.coverage import Point, Trailing

GIB = 1 << 30


@pytest.mark.parametrize("name", model_names())
@pytest.mark.parametrize("layout", HostLayout)
def test_every_component_gets_pages_within_the_budget(name: str, layout: HostLayout) -> None:
    model = composition_for(name, draft=1)
    pages = propose_page_counts(model, host_bytes=64 * GIB)
    assert pages.keys() == {c.name for c in model.components}
    formats = formats_of(model)
    spent = sum(place(formats[name], count, layout, 64).size_bytes for name, count in pages.items())
    assert 0.95 * 64 * GIB < spent <= 64 * GIB + 64 * len(pages)  # a layer-first part may round up by less than 64 bytes


def test_states_are_not_starved() -> None:
    model = composition_for("qwen3-next-80b-a3b")
    pages = propose_page_counts(model, host_bytes=64 * GIB, tokens_between_boundaries=8192)
    assert pages["mamba"] >= pages["full"] * model.page_size // 8192


def test_sharers_have_pages_of_their_own() -> None:
    model = composition_for("deepseek-v3.2" if "deepseek-v3.2" in model_names() else "deepseek-v4-flash")
    sharers = [c for c in model.components if c.shares is not None]
    pages = propose_page_counts(model, host_bytes=64 * GIB)
    assert sharers and all(pages[c.name] > 0 for c in sharers)


def test_a_ratio_is_of_the_device_pools_bytes() -> None:
    model = composition_for("gpt-oss-20b")
    device = {"full": 1000, "swa": 100}
    sizes = model.pool_page_bytes()
    host_bytes = 2 * (1000 * sizes["full"] + 100 * sizes["swa"])
    asked = {"tokens_between_boundaries": 1024, "min_path_share": 0.2}
    by_ratio = propose_page_counts(model, host_ratio=2, device_page_counts=device, **asked)  # type: ignore[arg-type]
    assert by_ratio == propose_page_counts(model, host_bytes=host_bytes, **asked)  # type: ignore[arg-type]


def test_single_pools_can_be_settled() -> None:
    model = composition_for("qwen3-next-80b-a3b")
    assert propose_page_counts(model, host_bytes=64 * GIB, page_counts={"mamba": 7})["mamba"] == 7


@pytest.mark.parametrize("name", model_names())
def test_a_pool_too_small_for_a_boundary_is_an_error(name: str) -> None:
    model = composition_for(name)
    length = 10_000
    for component in model.components:
        tokens = component.coverage.window_tokens if isinstance(component.coverage, Trailing) else length
        needed = 1 if isinstance(component.coverage, Point) else -(-min(tokens, length) // model.page_size)
        settled = {component.name: needed}
        assert (
            propose_page_counts(model, host_bytes=900 * GIB, request_tokens=length, page_counts=settled)[component.name]
            == needed
        )
        if needed > 1:
            with pytest.raises(
                ConfigurationError, match=f"{component.name}: a boundary of a request of 10000 tokens takes {needed}"
            ):
                propose_page_counts(
                    model, host_bytes=900 * GIB, request_tokens=length, page_counts={component.name: needed - 1}
                )
    with pytest.raises(ConfigurationError, match="are needed"):
        propose_page_counts(model, host_bytes=100_000, request_tokens=length)


@pytest.mark.parametrize(
    "wrong",
    [
        {}, {"host_bytes": GIB, "host_ratio": 2.0}, {"host_ratio": 2.0}, {"host_bytes": -1}, {"host_bytes": 1.5},
        {"host_ratio": 2.0, "device_page_counts": {"full": 9}}, {"host_ratio": 0, "device_page_counts": {"full": 9, "swa": 9}},
        {"host_ratio": float("nan"), "device_page_counts": {"full": 9, "swa": 9}},
        {"host_ratio": float("inf"), "device_page_counts": {"full": 9, "swa": 9}},
        {"host_ratio": "2", "device_page_counts": {"full": 9, "swa": 9}},
        {"host_bytes": GIB, "page_counts": {"mamba": 3}}, {"host_bytes": GIB, "page_counts": {"full": 0}},
        {"host_bytes": GIB, "requests_in_flight": 0}, {"host_bytes": GIB, "request_tokens": -5},
    ],
)  # fmt: skip
def test_absurd_budgets(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        propose_page_counts(composition_for("gpt-oss-20b"), **wrong)
