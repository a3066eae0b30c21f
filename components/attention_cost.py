"""What attention scores cost: the part of a prefill that grows with the prefix, in closed form."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCost:
    """The score FLOPs of one component's layers.

    The query at position `t` (counted from 0) sees `min((t + 1) // tokens_per_entry, max_entries)` entries.

    Attributes:
        component: the component whose entries are read.
        flops_per_entry: FLOPs of one query on one entry, summed over layers and all ranks:
            `2 * heads * (key_dim + value_dim)` a layer, a multiply and an add for scores and for weighted values.
        tokens_per_entry: 4 for 4:1 compressed entries.
        max_entries: the limit of a window (its past tokens and the query) or of a sparse top-k; None for no limit.
    """

    component: str
    flops_per_entry: float
    tokens_per_entry: int = 1
    max_entries: int | None = None

    def flops(self, start_tokens: int, end_tokens: int) -> float:
        """FLOPs of the queries at positions `[start_tokens, end_tokens)`. O(1)."""
        return self.flops_per_entry * (self._entries_before(end_tokens) - self._entries_before(start_tokens))

    def _entries_before(self, tokens: int) -> int:
        """Entries seen by all queries at positions `[0, tokens)` together."""
        if self.max_entries is None:
            return _floor_sum(tokens, self.tokens_per_entry)
        below_limit = min(tokens, self.max_entries * self.tokens_per_entry - 1)
        return _floor_sum(below_limit, self.tokens_per_entry) + (tokens - below_limit) * self.max_entries


def _floor_sum(tokens: int, divisor: int) -> int:
    """Sum of `m // divisor` over `m` in `1..tokens`."""
    quotient, remainder = divmod(tokens, divisor)
    return divisor * quotient * (quotient - 1) // 2 + quotient * (remainder + 1)
