"""What a picture shows, as the doctor reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from unified_tree.controllers.doctor.figures import Figures, PoolFigures, label_of, namespaces_of, sizes_of, summed
from unified_tree.controllers.inspector.figures import POOL_FIELDS
from unified_tree.misses.miss_cause import MissCause
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from unified_tree.controllers.inspector.picture import Picture


def figures_of(picture: Picture) -> Figures:
    """The figures of a picture that has some."""
    shown, cache = picture.figures, picture.cache
    stored = shown.get("storage", {})
    names = [component["name"] for component in cache["components"]]
    kinds = {component["name"]: component["kind"] for component in cache["components"]}
    evicted = {(names[component], tier): tokens for component, tier, tokens in shown["evicted"]}
    short_by = {(names[component], tier): tokens for component, tier, tokens in shown["short_by"]}
    pools = []
    for row in shown["pools"]:
        pool = dict(zip(POOL_FIELDS, row, strict=True))
        name, tier = pool["component"], int(pool["tier"])
        pools.append(
            PoolFigures(
                component=name,
                tier=Tier(tier).name.lower(),
                kind=kinds[name],
                total=pool["total"],
                used=pool["used"],
                protected=pool["protected"],
                stranded=pool["stranded"] if tier == Tier.DEVICE else 0,
                page_bytes=0 if cache.get("in_pages") else pool["page_bytes"],
                victims=pool["victims"],
                evicted_tokens=evicted.get((name, tier), 0),
                short_by=sizes_of(short_by.get((name, tier), ())),
            )
        )
    return Figures(
        page_size=cache["page_size"],
        save_grid_tokens=cache["save_grid_tokens"],
        prompt_tokens=shown["totals"]["prompt_tokens"],
        hit_tokens=shown["totals"]["hit_tokens"],
        misses={cause.label: tokens for cause, tokens in zip(MissCause, shown["misses"], strict=True) if tokens},
        details=summed((label_of(cause, detail), tokens) for cause, detail, tokens in shown["details"]),
        namespaces=namespaces_of(shown.get("of_namespaces", ())),
        beneficiaries=shown["beneficiaries"],
        drops=shown["drops"],
        requests=shown["totals"]["requests"],
        namespace_count=shown.get("namespace_count", 0),
        pools=pools,
        ghost_bytes=cache["ghost_bytes"],
        store_quarantined=sum(stored.get("quarantined", {}).values()),
        store_errors=stored.get("errors", 0),
        store_faults=stored.get("faults", {}),
        store_freed_bytes=stored.get("freed_bytes", 0),
        store_is_degraded=stored.get("is_degraded", False),
    )
