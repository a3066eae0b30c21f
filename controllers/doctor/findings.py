"""What the figures of a cache say. Each rule looks at one kind of trouble; those that cost most come first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from unified_tree.controllers.doctor.finding import Finding

if TYPE_CHECKING:
    from unified_tree.controllers.doctor.figures import Figures, PoolFigures

GIB = 1 << 30
MIB = 1 << 20
LEAST_SHARE = 0.005
"""Less of the prompts than this is no finding."""
FLOOD_SHARE = 0.5
"""A namespace for which this much of what was missed made room floods the others."""
STRANDED_SHARE = 0.1
PROTECTED_SHARE = 0.8


class Rule(NamedTuple):
    """What one cause of misses says.

    Attributes:
        label: of the cause, or of the cause and its detail with a `/` between.
        what, advice: as of a Finding; with `{share}` of the misses and the namespace that has most of them, `{figures}`, and
            `{ghost_mib}`.
    """

    label: str
    what: str
    advice: str


RULES = (
    Rule(
        "never_saved/not saved where it was due",
        "states that were due were not saved: {share}.",
        "Run up to each length of `lease.save_at`, save the state into `save_pages`, and pass it to `commit`.",
    ),
    Rule(
        "never_saved/aborted",
        "requests ended before their prompt was computed, and what stands on theirs is {share}.",
        "Save a state with each chunk (`checkpoints`), or let requests end their prefill.",
    ),
    Rule(
        "other_namespace",
        "the same tokens are cached in another namespace: {share}.",
        "Give tenants that may share one namespace: the same `cache_salt`, LoRA and extra key.",
    ),
    Rule(
        "other_weights",
        "the weights changed: what was known before an `invalidate` is {share}.",
        "Invalidate single namespaces, and only when weights change; expect this to pass.",
    ),
    Rule(
        "load_refused/cost",
        "on host, but computing was thought to be faster: {share}.",
        "Measure the bus and the accelerator and set `LoadCost(bytes_per_s=…, flops_per_s=…)`.",
    ),
    Rule(
        "load_refused/room",
        "on host, but the device had no room for it: {share}.",
        "Run fewer requests at once, or give the device pools more pages.",
    ),
    Rule(
        "load_failed",
        "loads from host failed: {share}.",
        "The log of `unified_tree` says why; a failed transfer engine needs a restart.",
    ),
    Rule(
        "in_flight",
        "another request was computing the same tokens: {share}.",
        "Admit a request with a prefix that is being computed one step later.",
    ),
    Rule(
        "prefetch_given_up",
        "the store had it, but the request waited no longer: {share}.",
        "Raise the time-out of `PrefetchPolicy`, or use `PrefetchMode.WAIT_COMPLETE`.",
    ),
    Rule(
        "page_remainder",
        "ends of prompts fill no page of {figures.page_size} tokens: {share}.",
        "Take smaller pages.",
    ),
    Rule(
        "save_grid",
        "states can be saved only each {figures.save_grid_tokens} tokens: {share} lie behind.",
        "Take a finer `save_grid_tokens`, if the kernels allow it.",
    ),
    Rule(
        "unknown",
        "evicted too long ago to be told apart: {share}.",
        "Raise `TreeSettings.ghost_bytes` above {ghost_mib:g} MiB to see more.",
    ),
)


def findings(figures: Figures, limit: int = 5) -> list[Finding]:
    """What is broken, and the findings that cost most prompt tokens, at most `limit`."""
    found = [
        *_store(figures),
        *_starved(figures),
        *_flooded(figures),
        *_never_saved(figures),
        *_diverged(figures),
        *(_said_by(rule, figures) for rule in RULES),
    ]
    found = [each for each in found if each.is_urgent or each.share >= LEAST_SHARE]
    return sorted(found, key=lambda each: (each.is_urgent, each.tokens), reverse=True)[:limit]


def _said_by(rule: Rule, figures: Figures) -> Finding:
    tokens = (figures.details if "/" in rule.label else figures.misses).get(rule.label, 0)
    share = _of_misses(figures, tokens) + _mostly_of(figures.namespaces.get(rule.label, {}), tokens)
    known = {"share": share, "figures": figures, "ghost_mib": figures.ghost_bytes / MIB}
    return _finding(figures, tokens, rule.what.format(**known), rule.advice.format(**known))


def _finding(figures: Figures, tokens: int, what: str, advice: str) -> Finding:
    share = tokens / figures.prompt_tokens if figures.prompt_tokens else 0.0
    return Finding(tokens=tokens, share=share, what=what, advice=advice)


def _of_misses(figures: Figures, tokens: int) -> str:
    return f"{tokens / max(1, sum(figures.misses.values())):.0%} of all misses"


def _mostly_of(namespaces: Mapping[str, int], tokens: int) -> str:
    """The namespace that has half of something, or more; nothing where only the nameless one is used."""
    name = max(namespaces, key=lambda each: namespaces[each], default="")
    if not any(namespaces) or 2 * namespaces[name] < tokens:
        return ""
    return f", {namespaces[name] / tokens:.0%} of it in namespace {name!r}"


def _starved(figures: Figures) -> Iterator[Finding]:
    """A pool evicts what comes back."""
    for pool in figures.pools:
        if not pool.evicted_tokens:
            continue
        size = "no limit" if pool.total is None else f"{pool.total:,} pages"
        if pool.is_shared:
            size = f"{pool.used:,} pages now, of memory that all pools share"
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
            to = f"Give the {pool.tier}'s pools memory for" if pool.is_shared else "Give it"
            return f"{to} {size}, at most, for {points:.1f} points of hits."
    return f"Give the {pool.tier}'s pools more memory." if pool.is_shared else "Give it more pages."


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
    """Paths without windows or states, for no reason of those that are known."""
    known = ("not saved where it was due", "aborted")
    tokens = figures.misses.get("never_saved", 0) - sum(figures.details.get(f"never_saved/{reason}", 0) for reason in known)
    share = _of_misses(figures, tokens) + _mostly_of(figures.namespaces.get("never_saved", {}), tokens)
    yield _finding(
        figures,
        tokens,
        f"the path was there, but no window or state where prompts branch: {share}.",
        "Name the lengths where prompts branch as `checkpoints` of `acquire`; raise `save_limit`.",
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
