"""Active weights of the blocks models are built from: matrices only, norms and biases excluded.

Twice a matrix's weights are the FLOPs of one token through it, a multiply and an add each.
"""

from __future__ import annotations

from dataclasses import dataclass


def gated_mlp(hidden: int, inner: int) -> int:
    """Gate, up and down projection (SwiGLU and similar): `3 * hidden * inner`."""
    return 3 * hidden * inner


def plain_mlp(hidden: int, inner: int) -> int:
    """Up and down projection: `2 * hidden * inner`."""
    return 2 * hidden * inner


def routed_mlp(*, hidden: int, inner: int, experts: int, active: int, shared_inner: int = 0) -> int:
    """The router, `active` gated experts of width `inner`, and a gated shared expert of width `shared_inner`."""
    return hidden * experts + active * gated_mlp(hidden, inner) + gated_mlp(hidden, shared_inner)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedQueryAttention:
    """Attention with `heads` queries over `kv_heads` keys and values; `gated` doubles the query projection."""

    hidden: int
    heads: int
    kv_heads: int
    key_dim: int
    value_dim: int
    gated: bool = False

    @property
    def weights(self) -> int:
        """q, k, v and output projections."""
        queries = self.heads * self.key_dim * (2 if self.gated else 1)
        return self.hidden * (queries + self.kv_heads * (self.key_dim + self.value_dim) + self.heads * self.value_dim)

    @property
    def flops_per_entry(self) -> int:
        """One query on one token: `2 * heads * (key_dim + value_dim)`."""
        return 2 * self.heads * (self.key_dim + self.value_dim)


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (MLA): the cache holds one latent and one rope key a token, for all heads.

    Scores are counted as a prefill computes them, with keys and values expanded from the latent.
    """

    hidden: int
    heads: int
    query_rank: int | None
    latent_dim: int
    nope_dim: int
    rope_dim: int
    value_dim: int

    @property
    def weights(self) -> int:
        """Query (low-rank or direct), latent, expansion and output projections."""
        queries = self.heads * (self.nope_dim + self.rope_dim)
        query = self.hidden * queries if self.query_rank is None else self.query_rank * (self.hidden + queries)
        latent = self.hidden * (self.latent_dim + self.rope_dim)
        expansion = self.latent_dim * self.heads * (self.nope_dim + self.value_dim)
        return query + latent + expansion + self.heads * self.value_dim * self.hidden

    @property
    def flops_per_entry(self) -> int:
        """One query on one token: `2 * heads * (nope_dim + rope_dim + value_dim)`."""
        return 2 * self.heads * (self.nope_dim + self.rope_dim + self.value_dim)
