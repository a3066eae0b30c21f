"""What a diagnosis needs to know of a cache, as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.shapes import COUNT, choice, of_class, record
from unified_tree.inputs.given_files import NotJsonError, parse_json
from unified_tree.inputs.printable import printable
from unified_tree.misses.explain import last_reason
from unified_tree.misses.miss_cause import MissCause
from unified_tree.terms.errors import ConfigurationError
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from unified_tree.controllers.cache.prefix_cache import PrefixCache
    from unified_tree.declare.coverage import Coverage

VERSION = 1
KINDS = ("path", "window", "state")
REJECTED = "rejected"
"""In place of a cause, of the prompts of requests that never had a place."""


def kind_of(coverage: Coverage) -> str:
    """What a component keeps: a `path`, a `window` or a `state`."""
    return "path" if coverage.is_path else "state" if coverage.is_exact else "window"


def label_of(cause: int, detail: str | None) -> str:
    """The label of a cause, with its detail behind a `/` if there is one."""
    label = MissCause(cause).label
    return label if detail is None else f"{label}/{printable(detail)}"


def namespaces_of(entries: Iterable[tuple[str, str, int]]) -> dict[str, dict[str, int]]:
    """Tokens by label and namespace."""
    found: dict[str, dict[str, int]] = {}
    for label, namespace, tokens in entries:
        of, name = found.setdefault(label, {}), printable(namespace)
        of[name] = of.get(name, 0) + tokens
    return found


def printable_sums(by_name: Mapping[str, int]) -> dict[str, int]:
    """Tokens by names that requests chose, made printable."""
    return summed((printable(name), tokens) for name, tokens in by_name.items())


def summed(entries: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Numbers by name, those of equal names added up."""
    found: dict[str, int] = {}
    for name, count in entries:
        found[name] = found.get(name, 0) + count
    return found


def sizes_of(by_bits: Sequence[int]) -> list[tuple[int, int]]:
    """Tokens by the bit length of a number of pages, as pairs of the most such pages and the tokens."""
    return [((1 << bits) - 1, tokens) for bits, tokens in enumerate(by_bits) if tokens]


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFigures:
    """One pool.

    Attributes:
        kind: `path`, `window` or `state`.
        total: pages; None for no limit. `used`: not free; `protected`: locked by what runs; `stranded`: no boundary (a length
            one can resume from) needs them.
        victims: values evicted because it was short.
        evicted_tokens: prompt tokens computed because of its evictions.
        short_by: of these the tokens that so many pages more, at most, would have kept: pairs of pages and tokens, ascending.
        is_shared: whether it shares its tier's memory with the other pools.
        last_reason: why its last victim went, in words.
    """

    component: str
    tier: str
    kind: str
    total: int | None
    used: int
    protected: int
    stranded: int
    page_bytes: int
    victims: int
    evicted_tokens: int = 0
    short_by: list[tuple[int, int]] = field(default_factory=list)
    is_shared: bool = False
    last_reason: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """As a finding calls it."""
        return f"{self.tier} pool of {self.component}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One cache.

    Attributes:
        prompt_tokens, hit_tokens: since it was made.
        misses: tokens by the label of their cause; together with the hit tokens they are the prompts'. Those of requests that
            were never admitted are REJECTED.
        details: of these, by label and detail with a `/` between.
        namespaces: of what was never saved, and of what other weights had computed, the tokens by label, with its detail, and
            by namespace. Those of an inspector also have what was never seen and what diverged, since it was opened.
        beneficiaries: evicted tokens by the other namespace for which room was made.
        drops: what was not done, by reason.
        requests: admitted; `namespace_count`: namespaces of which something is known.
        rejected_requests: how many were never admitted, as far as whoever made the figures knows; a cache alone does not.
        longest_rejected: prompt tokens of the longest of them.
        ghost_bytes: the memory of evictions.
        policy_failures: how often a custom eviction policy failed; `last_policy_failure`: one of the reasons.
        store_quarantined: pages of the store that were not what had been put; `store_errors` calls of it that failed;
            `store_faults` pages by the kind of fault; `store_freed_bytes` what it gave up of other formats or sizes;
            `store_is_degraded`: it failed when it was last tried.
        age_s: how long ago the cache told these to its inspector; 0 for figures that are read when they are asked for.
    """

    title: str = "the cache"
    page_size: int
    save_grid_tokens: int
    prompt_tokens: int
    hit_tokens: int
    misses: dict[str, int]
    details: dict[str, int] = field(default_factory=dict)
    namespaces: dict[str, dict[str, int]] = field(default_factory=dict)
    beneficiaries: dict[str, int] = field(default_factory=dict)
    drops: dict[str, int] = field(default_factory=dict)
    requests: int = 0
    namespace_count: int = 0
    rejected_requests: int = 0
    longest_rejected: int = 0
    pools: list[PoolFigures] = field(default_factory=list)
    ghost_bytes: int = 0
    policy_failures: int = 0
    last_policy_failure: str | None = None
    store_quarantined: int = 0
    store_errors: int = 0
    store_faults: dict[str, int] = field(default_factory=dict)
    store_freed_bytes: int = 0
    store_is_degraded: bool = False
    age_s: float = field(default=0.0, compare=False)

    @classmethod
    def of(cls, cache: PrefixCache, title: str = "the cache") -> Figures:
        """Those of a cache now, read on its thread. Cost: O(components)."""
        stats, ledger, state = cache.stats(), cache.ledger, cache.tree.state
        pools = []
        for tier in (Tier.DEVICE, Tier.HOST):
            for name, pool in (stats.pools if tier is Tier.DEVICE else stats.host_pools).items():
                i = state.layout.index_of(name)
                pools.append(
                    PoolFigures(
                        component=name,
                        tier=tier.name.lower(),
                        kind=kind_of(state.components[i].coverage),
                        total=pool.total,
                        used=pool.used,
                        protected=pool.protected,
                        stranded=getattr(pool, "stranded", 0),
                        page_bytes=pool.page_bytes,
                        victims=pool.victims,
                        evicted_tokens=ledger.evicted.get((i, tier), 0),
                        short_by=sizes_of(ledger.short_by.get((i, tier), ())),
                        is_shared=state.shared_pools[tier] is not None,
                        last_reason=last_reason(state, i, tier),
                    )
                )
        return cls(
            title=printable(title),
            page_size=cache.page_size,
            save_grid_tokens=state.layout.save_grid_tokens,
            prompt_tokens=stats.prompt_tokens,
            hit_tokens=stats.hit_tokens,
            misses={cause.label: tokens for cause, tokens in zip(MissCause, ledger.tokens, strict=True) if tokens},
            details=summed((label_of(cause, detail), tokens) for (cause, detail), tokens in ledger.details.items()),
            namespaces=namespaces_of(
                (label_of(cause, detail), name, tokens) for (cause, detail, name), tokens in ledger.namespaces.items()
            ),
            beneficiaries=printable_sums(ledger.beneficiaries),
            drops=dict(stats.drops),
            requests=stats.requests,
            namespace_count=0 if state.ghosts is None else state.ghosts.root_count,
            pools=pools,
            ghost_bytes=state.settings.ghost_bytes,
            policy_failures=stats.policy.failures,
            last_policy_failure=stats.policy.last_failure and printable(stats.policy.last_failure),
            store_quarantined=0 if stats.storage is None else sum(stats.storage.quarantined.values()),
            store_errors=0 if stats.storage is None else stats.storage.errors,
            store_faults={} if stats.storage is None else dict(stats.storage.faults),
            store_freed_bytes=0 if stats.storage is None else stats.storage.freed_bytes,
            store_is_degraded=stats.storage is not None and stats.storage.is_degraded,
        )

    def with_rejected(self, prompt_tokens: Sequence[int]) -> Figures:
        """These, and requests with so long prompts that never had a place: all of them is missed."""
        if not prompt_tokens:
            return self
        tokens = sum(prompt_tokens)
        return replace(
            self,
            prompt_tokens=self.prompt_tokens + tokens,
            misses={**self.misses, REJECTED: tokens},
            rejected_requests=len(prompt_tokens),
            longest_rejected=max(prompt_tokens),
        )

    def record(self) -> dict[str, Any]:
        """As a JSON object."""
        return {"unified_tree_figures": VERSION, **asdict(self)}

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.record())

    @classmethod
    def from_json(cls, text: str | bytes) -> list[Figures]:
        """One object of `to_json`, or a list of them. Raises ConfigurationError for anything else, with where it is wrong."""
        try:
            given = parse_json(text)
        except NotJsonError as error:
            raise ConfigurationError(f"these are no figures of a cache: no JSON in line {error.line}: {error.why}") from error
        rows = given if isinstance(given, list) else [given]
        return [cls._of_record(row, f"figures[{i}]" if isinstance(given, list) else "it") for i, row in enumerate(rows)]

    @classmethod
    def _of_record(cls, given: Any, where: str) -> Figures:
        try:
            version = record({"unified_tree_figures": COUNT})(given, where)["unified_tree_figures"]
            if version != VERSION:
                raise ConfigurationError(f"figures of version {version} cannot be read; this reads version {VERSION}")
            figures: Figures = of_class(cls)(given, where)
            for i, pool in enumerate(figures.pools):
                choice(*KINDS)(pool.kind, f"pools[{i}].kind")
                choice("device", "host")(pool.tier, f"pools[{i}].tier")
        except ConfigurationError as error:
            raise ConfigurationError(f"these are no figures of a cache: {error}") from error
        return figures
