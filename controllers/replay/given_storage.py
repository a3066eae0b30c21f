"""The options of a store behind the host tier or of a prefix linker, and from what was given to its settings."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any

import click

from unified_tree.controllers.pools import propose_page_counts
from unified_tree.controllers.replay.given_options import GIB, MAX_GIB
from unified_tree.controllers.replay.linker_settings import LINKERS, LinkerSettings
from unified_tree.controllers.replay.storage_cost import DEFAULT_GB_PER_S, DEFAULT_LATENCY_US, StorageCost
from unified_tree.controllers.replay.storage_settings import BOUNDED, StorageSettings
from unified_tree.controllers.storage import StorageRegistry
from unified_tree.controllers.storage_tier import PrefetchMode, PrefetchPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from unified_tree.components import Composition
    from unified_tree.controllers.replay.host_settings import HostSettings

SIZE_RATIO = 10
PLACES = {"file": "file:DIR", "mooncake": "mooncake:HOST:PORT", "redis": "redis:HOST:PORT or redis:/SOCKET"}
DEPENDENT = {
    "storage_gib": "--storage-gib",
    "storage_gb_per_s": "--storage-gb-per-s",
    "storage_latency_us": "--storage-latency-us",
    "prefetch": "--prefetch",
}


def storage_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command."""
    options = (
        click.option(
            "--storage",
            metavar="NAME[:PLACE]",
            help="A store behind host memory: file:DIR, memory, mooncake:HOST:PORT, redis:HOST:PORT, redis:/SOCKET, or an "
            "installed engine with its settings, NAME:a=b,c=d. Or LMCache, which needs no host memory before it: "
            "lmcache:HOST:PORT for a daemon on this machine, lmcache-in-process[:FILE.yaml] for one in the replay's own "
            "process, each also with settings, lmcache:daemon=HOST:PORT,c=d. No server is started. Every row keeps its pages "
            "apart, and a later replay of the same trace and model finds those of the row of the same name. LMCache fills "
            "device pages itself, so with it they are real, of 64 bytes each as with --verify.",
        ),
        click.option(
            "--storage-gib",
            type=float,
            help=f"What a file or memory store holds, GiB of true pages a rank; a replay writes far smaller ones.  "
            f"[default: {SIZE_RATIO} times the host's]",
        ),
        click.option(
            "--storage-gb-per-s",
            type=float,
            help=f"Modelled rate of the store, each way, GB/s.  [default: {DEFAULT_GB_PER_S:g}]",
        ),
        click.option(
            "--storage-latency-us",
            type=float,
            help=f"Modelled latency of each of its calls, µs.  [default: {DEFAULT_LATENCY_US:g}]",
        ),
        click.option(
            "--prefetch",
            type=click.Choice([mode.value for mode in PrefetchMode]),
            help=f"When a request stops waiting for its prefetch.  [default: {PrefetchPolicy().mode.value}]",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def storage_from(composition: Composition, host: HostSettings | None, given: Mapping[str, Any]) -> StorageSettings | None:
    """The store asked for; None for none. Raises click.UsageError for its options without it, or for it without a host tier."""
    text = given["storage"]
    if text is None:
        for name, option in DEPENDENT.items():
            if given[name] is not None:
                raise click.UsageError(f"{option} needs a store: give --storage")
        return None
    if is_linker(given):
        return None
    if host is None:
        raise click.UsageError("--storage needs a host tier before it: give --host-gib")
    engine, _, place = text.partition(":")
    known = StorageRegistry().names
    if engine not in known:
        names = ", ".join((*known, *LINKERS))
        raise click.BadParameter(f"no storage engine is called {engine!r}; known are {names}", param_hint="--storage")
    if engine in PLACES and not place:
        raise click.BadParameter(f"say where it is: {PLACES[engine]}", param_hint="--storage")
    gib = given["storage_gib"]
    if gib is not None and engine not in BOUNDED:
        raise click.UsageError(f"--storage-gib is for {' and '.join(BOUNDED)}; how much {engine} holds is its own business")
    if gib is not None and not 0 < gib <= MAX_GIB:
        raise click.BadParameter(f"must be above zero and at most {MAX_GIB:,}, not {gib}", param_hint="--storage-gib")
    size_bytes = SIZE_RATIO * host.size_bytes if gib is None else int(gib * GIB)
    is_bounded = engine in BOUNDED
    return StorageSettings(
        engine=engine,
        place=place,
        size_bytes=size_bytes if is_bounded else None,
        page_counts=propose_page_counts(composition, host_bytes=size_bytes) if is_bounded else {},
        cost=_cost(given),
        prefetch=_prefetch(given),
    )


def is_linker(given: Mapping[str, Any]) -> bool:
    """Whether --storage names a prefix linker, which is no store behind host memory."""
    return given["storage"] is not None and given["storage"].partition(":")[0] in LINKERS


def linker_from(given: Mapping[str, Any]) -> LinkerSettings | None:
    """The linker asked for; None for none. Raises click.UsageError for an option that it has not."""
    if not is_linker(given):
        return None
    name, _, place = given["storage"].partition(":")
    if given["storage_gib"] is not None:
        raise click.UsageError(f"--storage-gib is for {' and '.join(BOUNDED)}; how much {name} holds is its own business")
    return LinkerSettings(name=name, place=place, cost=_cost(given), prefetch=_prefetch(given))


def _cost(given: Mapping[str, Any]) -> StorageCost:
    return StorageCost(
        bytes_per_s=_number(given, "storage_gb_per_s", DEFAULT_GB_PER_S, above=0) * 1e9,
        latency_s=_number(given, "storage_latency_us", DEFAULT_LATENCY_US) * 1e-6,
    )


def _prefetch(given: Mapping[str, Any]) -> PrefetchPolicy:
    return PrefetchPolicy(mode=PrefetchMode(given["prefetch"] or PrefetchPolicy().mode.value))


def _number(given: Mapping[str, Any], name: str, default: float, above: float | None = None) -> float:
    value = default if given[name] is None else float(given[name])
    if not (isfinite(value) and (value >= 0 if above is None else value > above)):
        wanted = "of zero or more" if above is None else f"above {above:g}"
        raise click.BadParameter(f"must be a number {wanted}, not {value}", param_hint=DEPENDENT[name])
    return value
