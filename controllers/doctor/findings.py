"""What the figures of a cache say. Each rule looks at one kind of trouble; those that cost most come first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from unified_tree.controllers.doctor.finding import Finding

if TYPE_CHECKING:
    from unified_tree.controllers.doctor.figures import Figures, PoolFigures

GIB = 1 << 30
LEAST_SHARE = 0.005
"""Less of the prompts than this is no finding."""
FLOOD_SHARE = 0.5
"""A namespace for which this much of what was missed made room floods the others."""
STRANDED_SHARE = 0.1
PROTECTED_SHARE = 0.8


def findings(figures: Figures, limit: int = 5) -> list[Finding]:
    """What is broken, and the findings that cost most prompt tokens, at most `limit`."""
    found = [
        *_store(figures),
        *_starved(figures),
        *_flooded(figures),
        *_never_saved(figures),
        *_elsewhere(figures),
        *_diverged(figures),
        *_host(figures),
        *_waiting(figures),
        *_grain(figures),
        *_unknown(figures),
    ]
    found = [each for each in found if each.is_urgent or each.share >= LEAST_SHARE]
    return sorted(found, key=lambda each: (each.is_urgent, each.tokens), reverse=True)[:limit]


def _finding(figures: Figures, tokens: int, what: str, advice: str) -> Finding:
    share = tokens / figures.prompt_tokens if figures.prompt_tokens else 0.0
    return Finding(tokens=tokens, share=share, what=what, advice=advice)


def _of_misses(figures: Figures, tokens: int) -> str:
    return f"{tokens / max(1, sum(figures.misses.values())):.0%} of all misses"


def _starved(figures: Figures) -> Iterator[Finding]:
    """A pool evicts what comes back."""
    for pool in figures.pools:
        if not pool.evicted_tokens:
            continue
        size = "no limit" if pool.total is None else f"{pool.total:,} pages"
        yield _finding(
            figures,
            pool.evicted_tokens,
            f"{pool.name}: {_of_misses(figures, pool.evicted_tokens)} are its evictions ({size}, {pool.victims:,} evictions).",
            _more(figures, pool) + _crowded(pool),
        )


def _more(figures: Figures, pool: PoolFigures) -> str:
    """How much larger it should be."""
    kept = 0
    for pages, tokens in pool.short_by:
        kept += tokens
        if 2 * kept >= pool.evicted_tokens:
            size = f"{pages:,} pages more"
            if pool.page_bytes:
                size += f" ({pages * pool.page_bytes / GIB:.3g} GiB)"
            points = 100 * kept / max(1, figures.prompt_tokens)
            return f"Give it {size}, at most, for {points:.1f} points of hits."
    return "Give it more pages."


def _crowded(pool: PoolFigures) -> str:
    if pool.total and pool.protected > PROTECTED_SHARE * pool.total:
        return f" What runs locks {pool.protected / pool.total:.0%} of it now: fewer requests at once help, too."
    if pool.used and pool.stranded > STRANDED_SHARE * pool.used:
        return f" {pool.stranded / pool.used:.0%} of it is stranded: no request can resume there; save at other lengths."
    return ""


def _flooded(figures: Figures) -> Iterator[Finding]:
    """Room for one namespace takes what others come back for."""
    evicted = figures.misses.get("evicted", 0)
    for namespace, tokens in figures.beneficiaries.items():
        if tokens >= FLOOD_SHARE * evicted:
            yield _finding(
                figures,
                tokens,
                f"namespace {namespace!r}: room for it evicted {tokens / max(1, evicted):.0%} of what others came back for.",
                "Give it a lower `priority` with the policy `priority`, or a cache of its own.",
            )


def _never_saved(figures: Figures) -> Iterator[Finding]:
    """Paths without windows or states."""
    tokens = figures.misses.get("never_saved", 0)
    due = figures.details.get("never_saved/not saved where it was due", 0)
    aborted = figures.details.get("never_saved/aborted", 0)
    if due:
        yield _finding(
            figures,
            due,
            f"states that were due were not saved: {_of_misses(figures, due)}.",
            "Run up to each length of `lease.save_at`, save the state into `save_pages`, and pass it to `commit`.",
        )
    if aborted:
        yield _finding(
            figures,
            aborted,
            f"requests ended before their prompt was computed: {_of_misses(figures, aborted)} stand on what they left.",
            "Save a state with each chunk (`checkpoints`), or let requests end their prefill.",
        )
    yield _finding(
        figures,
        tokens - due - aborted,
        f"the path was there, but no window or state where prompts branch: {_of_misses(figures, tokens - due - aborted)}.",
        "Name the lengths where prompts branch as `checkpoints` of `acquire`; raise `save_limit`.",
    )


def _elsewhere(figures: Figures) -> Iterator[Finding]:
    namespaces = figures.misses.get("other_namespace", 0)
    yield _finding(
        figures,
        namespaces,
        f"the same tokens are cached in another namespace: {_of_misses(figures, namespaces)}.",
        "Give tenants that may share one namespace: the same `cache_salt`, LoRA and extra key.",
    )
    weights = figures.misses.get("other_weights", 0)
    yield _finding(
        figures,
        weights,
        f"the weights changed: {_of_misses(figures, weights)} were known before an `invalidate`.",
        "Invalidate single namespaces, and only when weights change; expect this to pass.",
    )


def _diverged(figures: Figures) -> Iterator[Finding]:
    tokens = figures.misses.get("diverged", 0)
    if tokens > 0.5 * sum(figures.misses.values()):
        yield _finding(
            figures,
            tokens,
            f"prompts leave known prefixes: {_of_misses(figures, tokens)} stand behind a shared beginning.",
            "That is normal for new questions. If whole prompts should agree, look for a date or an id near `Miss.begin`.",
        )


def _host(figures: Figures) -> Iterator[Finding]:
    cost = figures.details.get("load_refused/cost", 0)
    yield _finding(
        figures,
        cost,
        f"on host, but computing was thought to be faster: {_of_misses(figures, cost)}.",
        "Measure the bus and the accelerator and set `LoadCost(bytes_per_s=…, flops_per_s=…)`.",
    )
    room = figures.details.get("load_refused/room", 0)
    yield _finding(
        figures,
        room,
        f"on host, but the device had no room for it: {_of_misses(figures, room)}.",
        "Run fewer requests at once, or give the device pools more pages.",
    )
    failed = figures.misses.get("load_failed", 0)
    yield _finding(
        figures,
        failed,
        f"loads from host failed: {_of_misses(figures, failed)}.",
        "The log of `unified_tree` says why; a failed transfer engine needs a restart.",
    )


def _store(figures: Figures) -> Iterator[Finding]:
    """A store that lies, fails, or is not asked any more."""
    if figures.store_quarantined:
        yield Finding(
            tokens=0,
            share=0.0,
            what=f"the store gave back {figures.store_quarantined:,} pages that were not what had been put.",
            advice="None was used. Look at the store's disks and at who else writes there; delete its data.",
            is_urgent=True,
        )
    if figures.store_errors or figures.store_is_degraded:
        state = "is not asked any more for now" if figures.store_is_degraded else "is still asked"
        yield Finding(
            tokens=0,
            share=0.0,
            what=f"{figures.store_errors:,} calls of the store failed; it {state}.",
            advice="The log of `unified_tree` has the store's own words.",
            is_urgent=True,
        )


def _waiting(figures: Figures) -> Iterator[Finding]:
    in_flight = figures.misses.get("in_flight", 0)
    yield _finding(
        figures,
        in_flight,
        f"another request was computing the same tokens: {_of_misses(figures, in_flight)}.",
        "Admit a request with a prefix that is being computed one step later.",
    )
    given_up = figures.misses.get("prefetch_given_up", 0)
    yield _finding(
        figures,
        given_up,
        f"the store had it, but the request waited no longer: {_of_misses(figures, given_up)}.",
        "Raise the time-out of `PrefetchPolicy`, or use `PrefetchMode.WAIT_COMPLETE`.",
    )


def _grain(figures: Figures) -> Iterator[Finding]:
    page = figures.misses.get("page_remainder", 0)
    yield _finding(
        figures,
        page,
        f"ends of prompts fill no page of {figures.page_size} tokens: {_of_misses(figures, page)}.",
        "Take smaller pages.",
    )
    grid = figures.misses.get("save_grid", 0)
    yield _finding(
        figures,
        grid,
        f"states can be saved only each {figures.save_grid_tokens} tokens: {_of_misses(figures, grid)} lie behind.",
        "Take a finer `save_grid_tokens`, if the kernels allow it.",
    )


def _unknown(figures: Figures) -> Iterator[Finding]:
    tokens = figures.misses.get("unknown", 0)
    yield _finding(
        figures,
        tokens,
        f"evicted too long ago to be told apart: {_of_misses(figures, tokens)}.",
        f"Raise `TreeSettings.ghost_bytes` above {figures.ghost_bytes / (1 << 20):g} MiB to see more.",
    )
