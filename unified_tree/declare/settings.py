"""Every bound of the tree, with its default."""

from __future__ import annotations

from dataclasses import dataclass, fields

from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError

MAY_BE_ZERO = ("ghost_bytes", "faded_ghosts")


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSettings:
    """Bounds that trade one call's time for another's, or memory for what can be told of a miss or learned of reuse. All are
    integers, of one or more but where it says 0.

    These change what prompts hit: `settle_limit`, because a value whose mark is not up to date yet counts as stranded or not as
    it did before, and `evict_reclaim_limit`, because an eviction that finds no invalidated node takes what is of use;
    `cost_steps` under `cost` and `density`; how many `ghost_bytes`, and all from `remembered_turns` on, under `density`. The
    others change nothing that is hit, but for what sessions supersede: see `cost_steps` and `session_texts`.

    Attributes:
        settle_limit: nodes whose marks a call updates beyond those that it changed itself; see `UnifiedTree.settle`.
        evict_reclaim_limit: nodes of invalidated namespaces that an eviction looks at before each victim.
        max_listed_children: children of a node that are only a list; more get a table.
        cost_steps: how many nodes `cost` and `density` go up to find the boundary (a length one can resume from) before a
            state or window; beyond that they use the distance so far. A session's turn supersedes what as many have.
        ghost_bytes: host memory for what was evicted, by which misses are told apart, and as much for texts that several
            namespaces have; 0 for none, and then no causes of misses. A policy that recognises by it who comes back has
            the default then.
        faded_ghosts: how many evicted prefixes beyond that are still known to have been there, some 400 bytes each; 0 or more.
        session_texts: how many texts of one session may go on at once; the one unused for longest is left to eviction.
        remembered_turns: from how many of the last requests the `density` policy learns, some 500 bytes each.
        revise_every: after so many requests the `density` policy learns anew, and before that after every 64.
        listed_places: how many places of one text are known where requests fork off; the one unused for longest is forgotten.
        listed_saves: how many lengths of one text are known where windows or states were saved; the oldest are forgotten.
        listed_uses: how many lengths of one text are known up to which it was used, each by a later use than the next one.
    """

    settle_limit: int = 16
    evict_reclaim_limit: int = 32
    max_listed_children: int = 8
    cost_steps: int = 64
    ghost_bytes: int = 64 << 20
    faded_ghosts: int = 1 << 16
    session_texts: int = 8
    remembered_turns: int = 4096
    revise_every: int = 512
    listed_places: int = 16
    listed_saves: int = 8
    listed_uses: int = 8

    def __post_init__(self) -> None:
        for field in fields(self):
            number, least = getattr(self, field.name), 0 if field.name in MAY_BE_ZERO else 1
            if type(number) is not int or number < least:
                raise ConfigurationError(f"{field.name} must be an integer of {least} or more, not {repr_of(number)}")
