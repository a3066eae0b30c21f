"""Totals: numbers that count up from zero. Each is declared once, with its meaning, for statistics, metrics and tapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

WHAT = "what"


def total(what: str) -> Any:
    """A dataclass field that counts; `what` is the help text of its metric."""
    return field(default=0, metadata={WHAT: what})


def totals_of(kind: type[Any]) -> Mapping[str, str]:
    """The totals of a dataclass, by name, and what they count."""
    return {each.name: each.metadata[WHAT] for each in fields(kind) if WHAT in each.metadata}


@dataclass(slots=True, kw_only=True)
class CacheTotals:
    """The totals that a cache counts, and that `CacheStats` and its metrics show as they are."""

    requests: int = total("leases acquired")
    prompt_tokens: int = total("prompt tokens of those leases")
    hit_tokens: int = total("prompt tokens not computed again, less those whose load failed")
    host_hit_tokens: int = total("prompt tokens loaded back from host by loads that have ended")
    storage_hit_tokens: int = total("prompt tokens loaded back that had been prefetched for the request")
    arriving_tokens: int = total("prompt tokens whose state was to arrive from another server")
    rebuilt_tokens: int = total("cached tokens run again to rebuild windows")
    evictions: int = total("values evicted from device")
    tombstones: int = total("evicted values whose node stayed")
    deleted_nodes: int = total("nodes that left the tree, and leaves that lost their end")
    lost: int = total("evicted values that boundaries needed and that had no copy")
    duplicate_pages: int = total("pages freed at commit because the tree had their tokens")
    refused: int = total("calls that raised OutOfPagesError")
    loads: int = total("load backs started")
    ended_sessions: int = total("sessions that have ended, or were unused for longest when too many were open")
