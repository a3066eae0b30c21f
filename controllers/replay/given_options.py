"""From what was given on the command line to a composition, a budget and a workload."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

import click

from unified_tree.components import composition_for, from_hf_config
from unified_tree.controllers.replay.budget_split import split_for_server
from unified_tree.controllers.replay.given_latency import is_multiturn, multiturn_from
from unified_tree.controllers.replay.multiturn import multiturn_workload
from unified_tree.controllers.replay.synthetic import SyntheticOptions, synthetic_workload
from unified_tree.controllers.replay.trace import TraceOptions, read_trace

if TYPE_CHECKING:
    from unified_tree.components import Composition
    from unified_tree.controllers.replay.server_settings import ServerSettings
    from unified_tree.controllers.replay.workload import Workload

DEFAULT_MODEL = "gpt-oss-20b"
GIB = 1 << 30
MAX_GIB = 1_000_000
MAX_PAGES = 1 << 32


def composition_from(given: dict[str, Any]) -> Composition:
    """The model, from --config or --model."""
    if given["config"] is not None and given["model"] is not None:
        raise click.UsageError("give --config or --model, not both")
    choices = {
        "page_size": given["page_size"],
        "tensor_parallel": given["tp"],
        "kv_dtype": given["kv_dtype"],
        "draft": given["draft"],
    }
    if given["config"] is not None:
        return from_hf_config(given["config"], **choices)
    return composition_for(given["model"] or DEFAULT_MODEL, **choices)


def budget_from(composition: Composition, settings: ServerSettings, given: dict[str, Any]) -> tuple[dict[str, int], int]:
    """Pages by pool, and the bytes they were split from; pools that were all given need no budget."""
    device_gib = given["device_gib"]
    if not 0 < device_gib <= MAX_GIB:
        raise click.BadParameter(f"must be above zero and at most {MAX_GIB:,}, not {device_gib}", param_hint="--device-gib")
    pages = parse_pages(given["pages_text"], "--pages")
    page_bytes = composition.pool_page_bytes()
    device_bytes = int(device_gib * GIB)
    if set(pages) == set(page_bytes):
        device_bytes = sum(count * page_bytes[name] for name, count in pages.items())
    return split_for_server(composition, device_bytes, settings, pages), device_bytes


def parse_pages(text: str | None, option: str) -> dict[str, int]:
    """Page counts by name from `full=4096,swa=512`; none from None. Raises click.BadParameter naming the option."""
    pages: dict[str, int] = {}
    for part in text.split(",") if text else []:
        name, equals, count = part.strip().partition("=")
        if not equals or not count.isdecimal() or name in pages or int(count) > MAX_PAGES:
            raise click.BadParameter(f"must be pool=pages, each pool once: {part!r}", param_hint=option)
        pages[name] = int(count)
    return pages


def workload_from(given: dict[str, Any]) -> Workload:
    """What to replay: the trace named, or a built-in workload."""
    requests, seed = positive(given, "requests"), given["seed"]
    if seed < 0:
        raise click.BadParameter(f"must be zero or more, not {seed}", param_hint="--seed")
    gap_s = given["session_gap_s"]
    if not (isfinite(gap_s) and gap_s >= 0):
        raise click.BadParameter(f"must be a number of zero or more, not {gap_s}", param_hint="--session-gap-s")
    if is_multiturn(given):
        return multiturn_workload(multiturn_from(given))
    if given["trace"] is None:
        return synthetic_workload(SyntheticOptions(request_count=requests or SyntheticOptions().request_count, seed=seed))
    options = TraceOptions(block_tokens=positive(given, "block_size"), max_requests=requests, session_gap_s=gap_s, seed=seed)
    return read_trace(given["trace"], options)


def positive(given: dict[str, Any], name: str) -> int | None:
    """An option that must be one or more where it is given. Raises click.BadParameter."""
    value: int | None = given[name]
    if value is not None and value < 1:
        raise click.BadParameter(f"must be one or more, not {value}", param_hint=f"--{name.replace('_', '-')}")
    return value
