"""From what was given on the command line to a host tier, and to how much is verified."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

import click

from unified_tree.controllers.host.host_tier import WritePolicy
from unified_tree.controllers.host.load_cost import DEFAULT_FLOPS_PER_S, LoadCost
from unified_tree.controllers.pools import propose_page_counts
from unified_tree.controllers.pools.host_layout import host_page_bytes
from unified_tree.controllers.replay.given_latency import prefill_flops_from
from unified_tree.controllers.replay.given_options import GIB, MAX_GIB, parse_pages
from unified_tree.controllers.replay.host_settings import DEFAULT_GB_PER_S, HostSettings
from unified_tree.controllers.replay.row_tiers import Verification

if TYPE_CHECKING:
    from unified_tree.components import Composition


def host_from(composition: Composition, given: dict[str, Any]) -> HostSettings | None:
    """The host tier asked for; None for none. Raises click.UsageError for its options without it."""
    host_gib, pages = given["host_gib"], parse_pages(given["host_pages_text"], "--host-pages")
    names = {component.name for component in composition.components}
    if host_gib is None and set(pages) != names:
        for option, name in (("host_pages_text", "--host-pages"), ("write_policy", "--write-policy")):
            if given[option] is not None:
                raise click.UsageError(f"{name} needs a host tier: give --host-gib, or pages for all of {', '.join(names)}")
        if given["host_gb_per_s"] is not None:
            raise click.UsageError("--host-gb-per-s needs a host tier: give --host-gib")
        return None
    if host_gib is not None and not 0 < host_gib <= MAX_GIB:
        raise click.BadParameter(f"must be above zero and at most {MAX_GIB:,}, not {host_gib}", param_hint="--host-gib")
    size_bytes = int(host_gib * GIB) if host_gib is not None else 0
    if set(pages) == names:
        size_bytes = sum(pages[c.name] * host_page_bytes(c.page_bytes) for c in composition.components)
    gb_per_s = DEFAULT_GB_PER_S if given["host_gb_per_s"] is None else given["host_gb_per_s"]
    if not (isfinite(gb_per_s) and gb_per_s > 0):
        raise click.BadParameter(f"must be a number above zero, not {gb_per_s}", param_hint="--host-gb-per-s")
    return HostSettings(
        page_counts=propose_page_counts(composition, host_bytes=size_bytes, page_counts=pages),
        size_bytes=size_bytes,
        write_policy=WritePolicy(given["write_policy"] or WritePolicy.WRITE_THROUGH.value),
        load_cost=LoadCost(
            bytes_per_s=gb_per_s * 1e9, flops_per_s=prefill_flops_from(given) or DEFAULT_FLOPS_PER_S * given["tp"]
        ),
    )


def verification_from(given: dict[str, Any]) -> Verification:
    """How much is verified."""
    if given["verify_full_bytes"]:
        return Verification.FULL
    return Verification.SHRUNK if given["verify"] else Verification.OFF
