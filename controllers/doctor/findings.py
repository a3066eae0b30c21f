"""What the figures of a cache say. Each rule looks at one kind of trouble; those that cost most come first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from unified_tree.controllers.cache.lease_tokens import UNSAVED, WITHOUT_PAGE
from unified_tree.controllers.doctor.figures import REJECTED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from unified_tree.controllers.doctor.figures import Figures, PoolFigures

GIB = 1 << 30
MIB = 1 << 20
LEAST_SHARE = 0.005
"""Less of the prompts than this is no finding."""
FLOOD_SHARE = 0.5
"""A namespace for which this much of what was missed made room floods the others."""
STRANDED_SHARE = 0.1
SALTED_SHARE = 0.5
"""Of so many namespaces for each request most requests have one of their own; where there are MANY_NAMESPACES."""
MANY_NAMESPACES = 8
PROTECTED_SHARE = 0.8


class Rule(NamedTuple):
    """What one cause of misses says.

    Attributes:
        label: of the cause, or of the cause and its detail with a `/` between.
        what, advice: as of a Finding; with `{tokens}` and the namespace that has most of them, `{figures}`, and `{ghost_mib}`.
    """

    label: str
    what: str
    advice: str


RULES = (
    Rule(
        f"never_saved/{UNSAVED}",
        "states that were due were not saved: {tokens}.",
        "Run up to each length of `lease.save_at`, save the state into `save_pages`, and pass it to `commit`.",
    ),
    Rule(
        f"never_saved/{WITHOUT_PAGE}",
        "states that were due had no page: {tokens}.",
        "Give the pool of states more pages, or run fewer requests at once: each may need three.",
    ),
    Rule(
        "never_saved/aborted",
        "requests ended before their prompt was computed, and what stands on theirs is {tokens}.",
        "Save a state with each chunk (`checkpoints`), or let requests end their prefill.",
    ),
    Rule(
        "other_weights",
        "the weights changed: what was known before an `invalidate` is {tokens}.",
        "Invalidate single namespaces, and only when weights change; expect this to pass.",
    ),
    Rule(
        "load_refused/cost",
        "on host, but computing was thought to be faster: {tokens}.",
        "Measure the bus and the accelerator and set `LoadCost(bytes_per_s=…, flops_per_s=…)`.",
    ),
    Rule(
        "load_refused/room",
        "on host, but the device had no room for it: {tokens}.",
        "Run fewer requests at once, or give the device pools more pages.",
    ),
    Rule(
        "load_failed",
        "loads from host failed: {tokens}.",
        "The log of `unified_tree` says why; a failed transfer engine needs a restart.",
    ),
    Rule(
        "in_flight",
        "another request was computing the same tokens: {tokens}.",
        "Admit a request with a prefix that is being computed one step later.",
    ),
    Rule(
        "prefetch_given_up",
        "the store had it, but the request waited no longer: {tokens}.",
        "Raise the time-out of `PrefetchPolicy`, or use `PrefetchMode.WAIT_COMPLETE`.",
    ),
    Rule(
        "store_failed/not given",
        "the store listed it and did not give it: {tokens}.",
        "`stats().storage.faults` and the log `unified_tree.storage` say what failed; look at the store's disks and nodes.",
    ),
    Rule(
        "store_failed/no answer",
        "the store did not say whether it has it: {tokens}.",
        "See that the store runs, and answers within the time-out of `PrefetchPolicy`.",
    ),
    Rule(
        "page_remainder",
        "ends of prompts fill no page of {figures.page_size} tokens: {tokens}.",
        "Take smaller pages: that brings as many at most, those of prompts that come again.",
    ),
    Rule(
        "save_grid",
        "states can be saved only each {figures.save_grid_tokens} tokens: {tokens} lie behind.",
        "Take a finer `save_grid_tokens`, if the kernels allow it.",
    ),
    Rule(
        "unknown",
        "evicted, and remembered without tokens: {tokens}.",
        "Raise `TreeSettings.ghost_bytes` above {ghost_mib:g} MiB to see more.",
    ),
)
NEW = (
    Rule(
        "never_seen",
        "no earlier prompt that is remembered had these tokens: {tokens}.",
        "A cache cannot hit them. If these prompts should share a beginning, look for a difference at their front: a date, an "
        "id, a new template.",
    ),
    Rule(
        "diverged",
        "prompts leave known prefixes: {tokens} stand behind a shared beginning.",
        "That is normal for new questions. If whole prompts should agree, look for a date or an id near `Miss.begin`.",
    ),
)
"""Rules on new prompts, which are findings only where these cost most."""


def findings(figures: Figures, limit: int = 5) -> list[Finding]:
    """Broken parts first, then the findings that cost most prompt tokens; at most `limit`."""
    found = [
        *_store(figures),
        *_policy(figures),
        *_rejected(figures),
        *_salted(figures),
        *_starved(figures),
        *_flooded(figures),
        *_never_saved(figures),
        *_new(figures),
        *(_said_by(rule, figures) for rule in RULES),
    ]
    found = [each for each in found if each.is_urgent or each.share >= LEAST_SHARE]
    return sorted(found, key=lambda each: (each.is_urgent, each.tokens), reverse=True)[:limit]


def _said_by(rule: Rule, figures: Figures) -> Finding:
    tokens = (figures.details if "/" in rule.label else figures.misses).get(rule.label, 0)
    counted = _counted(tokens) + _mostly_of(figures.namespaces.get(rule.label, {}), tokens)
    known = {"tokens": counted, "figures": figures, "ghost_mib": figures.ghost_bytes / MIB}
    return _finding(figures, tokens, rule.what.format(**known), rule.advice.format(**known))


def _finding(figures: Figures, tokens: int, what: str, advice: str) -> Finding:
    share = tokens / figures.prompt_tokens if figures.prompt_tokens else 0.0
    return Finding(tokens=tokens, share=share, what=what, advice=advice)


def _broken(what: str, advice: str) -> Finding:
    """A finding that comes first, whatever it has cost so far."""
    return Finding(tokens=0, share=0.0, what=what, advice=advice, is_urgent=True)


def _counted(tokens: int) -> str:
    """Tokens in words; the share of them stands before the finding."""
    return f"{tokens:,} tokens"


def _mostly_of(namespaces: Mapping[str, int], tokens: int) -> str:
    """The namespace that has half of something, or more; nothing where only the nameless one is used."""
    name = max(namespaces, key=lambda each: namespaces[each], default="")
    if not tokens or not any(namespaces) or 2 * namespaces[name] < tokens:
        return ""
    return f", {namespaces[name]:,} of them in namespace {name!r}"


def _rejected(figures: Figures) -> Iterator[Finding]:
    """Requests that are larger than the pools."""
    tokens = figures.misses.get(REJECTED, 0)
    yield _finding(
        figures,
        tokens,
        f"{figures.rejected_requests:,} requests never had a place: {_counted(tokens)} of prompts.",
        f"Give the device's pools room for prompts of {figures.longest_rejected:,} tokens and their answers, "
        "or refuse such requests before they come.",
    )


def _salted(figures: Figures) -> Iterator[Finding]:
    """One namespace computes what another has."""
    tokens = figures.misses.get("other_namespace", 0)
    what = f"the same tokens are cached in another namespace: {_counted(tokens)}."
    advice = "Give tenants that may share one namespace: the same `cache_salt`, LoRA and extra key."
    if figures.namespace_count >= max(MANY_NAMESPACES, SALTED_SHARE * figures.requests):
        what = (
            f"nearly every request has a namespace of its own ({figures.namespace_count:,} of them, {figures.requests:,} "
            f"requests): {_counted(tokens)} are cached in another one."
        )
        advice = "Look for a `cache_salt` or an extra key that is made anew for each request, and take one a tenant."
    yield _finding(figures, tokens, what, advice)


def _starved(figures: Figures) -> Iterator[Finding]:
    """A pool evicts what comes back. Host pools come first, which could also have kept what was last on the device."""
    devices = {pool.component: pool for pool in figures.pools if pool.tier == "device"}
    by_host = set()
    for pool in figures.pools:
        device = devices.get(pool.component)
        if pool.tier != "host" or not pool.victims or device is None:
            continue
        tokens = pool.evicted_tokens + device.evicted_tokens
        if tokens:
            by_host.add(pool.component)
            short_by = sorted([*pool.short_by, *_on_host(pool, device)])
            what = f"{pool.name}: {_counted(tokens)} were evicted from it, or from the device without a copy on it"
            yield _short(figures, pool, tokens, short_by, what)
    for pool in figures.pools:
        if pool.evicted_tokens and pool.component not in by_host:
            yield _short(
                figures,
                pool,
                pool.evicted_tokens,
                pool.short_by,
                f"{pool.name}: {_counted(pool.evicted_tokens)} were evicted from it",
            )


def _on_host(host: PoolFigures, device: PoolFigures) -> Iterator[tuple[int, int]]:
    """How many pages more of a host pool would have kept what so many more of the device would have: a host pool has all that
    the device has, and keeps what is larger than that.
    """
    for pages, tokens in device.short_by:
        have = 0 if host.total is None or device.total is None else host.total - device.total
        yield max(1, pages - have), tokens


def _short(figures: Figures, pool: PoolFigures, tokens: int, short_by: Sequence[tuple[int, int]], what: str) -> Finding:
    size = "a pool without a limit" if pool.total is None else f"a pool of {pool.total:,} pages"
    if pool.is_shared:
        size = f"{pool.used:,} pages now, of memory that all pools share"
    what = f"{what} ({size}; {pool.victims:,} evictions)."
    if pool.last_reason:
        what += f" The last one: {pool.last_reason.partition(';')[0]}."
    return _finding(figures, tokens, what, _more(figures, pool, tokens, short_by) + _crowded(figures, pool))


def _more(figures: Figures, pool: PoolFigures, tokens: int, short_by: Sequence[tuple[int, int]]) -> str:
    """How much larger it should be: for half of what it lost, and for all."""
    sizes: list[str] = []
    kept = 0
    for pages, more in short_by:
        kept += more
        if (2 * kept >= tokens and not sizes) or (kept == tokens and sizes and short_by[-1][0] == pages):
            size = f"{pages:,} pages more"
            if pool.page_bytes:
                gib = pages * pool.page_bytes / GIB
                size += f" ({gib:,.3g} GiB)" if gib < 1000 else f" ({gib:,.0f} GiB)"
            sizes.append(f"{size}, at most, for {100 * kept / max(1, figures.prompt_tokens):.1f} points of hits")
    if sizes:
        to = f"Give the {pool.tier}'s pools memory for" if pool.is_shared else "Give it"
        return f"{to} {', or '.join(dict.fromkeys(sizes))}."
    return f"Give the {pool.tier}'s pools more memory." if pool.is_shared else "Give it more pages."


def _crowded(figures: Figures, pool: PoolFigures) -> str:
    if pool.total and pool.protected > PROTECTED_SHARE * pool.total:
        return f" What runs locks {pool.protected:,} of its pages now: fewer requests at once help, too."
    if pool.used and pool.stranded > STRANDED_SHARE * pool.used:
        stranded = f" {pool.stranded:,} of its pages are stranded, so no request can resume there:"
        short = [
            other.name
            for other in figures.pools
            if other.tier == pool.tier and other.kind != "path" and pool.kind == "path" and other.victims
        ]
        if short:
            return f"{stranded} the {' and the '.join(short)} evicted what belongs to them; enlarge that first."
        return f"{stranded} nothing was saved at their ends; save at other lengths."
    return ""


def _flooded(figures: Figures) -> Iterator[Finding]:
    """Room for one namespace takes what others come back for."""
    evicted = figures.misses.get("evicted", 0)
    for namespace, tokens in figures.beneficiaries.items():
        if tokens >= FLOOD_SHARE * evicted:
            yield _finding(
                figures,
                tokens,
                f"namespace {namespace!r}: room for it evicted {_counted(tokens)} that others came back for.",
                "Limit it with `tenants`: a cap for it, or a floor for the others. "
                "Or give it a lower `priority` with the policy `priority`, or a cache of its own.",
            )


def _never_saved(figures: Figures) -> Iterator[Finding]:
    """Paths without windows or states, for no reason of those that are known."""
    known = [rule.label for rule in RULES if rule.label.startswith("never_saved/")]
    tokens = figures.misses.get("never_saved", 0) - sum(figures.details.get(label, 0) for label in known)
    counted = _counted(tokens) + _mostly_of(figures.namespaces.get("never_saved", {}), tokens)
    yield _finding(
        figures,
        tokens,
        f"the path was there, but no window or state where prompts branch: {counted}.",
        "Name the lengths where prompts branch as `checkpoints` of `acquire`; raise `save_limit`.",
    )


def _new(figures: Figures) -> Iterator[Finding]:
    """Tokens that no earlier prompt had, where nothing costs more."""
    most = max(figures.misses.values(), default=0)
    for rule in NEW:
        if figures.misses.get(rule.label, 0) == most:
            yield replace(_said_by(rule, figures), is_normal=True)


def _store(figures: Figures) -> Iterator[Finding]:
    """A store that lies, fails, or gives up what it had."""
    if figures.store_quarantined:
        yield _broken(
            f"the store gave back {figures.store_quarantined:,} pages that were not what had been put.",
            "None was used. Look at the store's disks and at who else writes there; delete its data.",
        )
    faults = {kind: count for kind, count in figures.store_faults.items() if count and kind in _STORE_FAULTS}
    if figures.store_errors or figures.store_is_degraded or faults:
        state = _TRIED_AGAIN if figures.store_is_degraded else "is still asked"
        kinds = "".join(f", {count:,} pages {_STORE_FAULTS[kind]}" for kind, count in faults.items())
        yield _broken(
            f"the store fails: {figures.store_errors:,} calls of the store failed{kinds}; it {state}.",
            "The log of `unified_tree` has the store's own words.",
        )
    if figures.store_freed_bytes:
        freed = figures.store_freed_bytes / (1 << 20)
        yield _broken(
            f"the store gave up {freed:,.1f} MiB of other formats or sizes to keep its capacity.",
            "Give the store more capacity, or each model and format a directory of its own.",
        )


def _policy(figures: Figures) -> Iterator[Finding]:
    """A custom eviction policy raises, or returns no numbers."""
    if figures.policy_failures:
        why = figures.last_policy_failure
        yield _broken(
            f"the eviction policy failed {figures.policy_failures:,} times, such as with {why}.",
            "Mend the policy, or choose a built-in one: a value for which `rank` fails is evicted early.",
        )


_TRIED_AGAIN = "is tried again by look-ups and waiting writes, a remote store once each `retry_pause_s`"
_STORE_FAULTS = {
    "unanswered": "were not answered for",
    "read_failed": "could not be read",
    "write_failed": "could not be written",
    "write_dropped": "were not taken",
}
"""Kinds of faults that show that a store is ill. That it lists a page which it then lacks may be an eviction in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding.

    Attributes:
        tokens: prompt tokens computed because of it.
        share: of all prompt tokens.
        what: the figure and the cause, one sentence.
        advice: the setting to change, one sentence.
        is_urgent: something is broken, whatever it has cost so far.
        is_normal: it may be as it should.
    """

    tokens: int
    share: float
    what: str
    advice: str
    is_urgent: bool = False
    is_normal: bool = False

    def __str__(self) -> str:
        share = "broken" if self.is_urgent else f"{self.share:6.1%}"
        return f"{share}  {self.what}\n        {self.advice}"
