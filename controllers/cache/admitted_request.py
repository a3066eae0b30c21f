"""A request of an engine, as the cache's watcher is told of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_tree.misses.causes import Miss


class AdmittedRequest:
    """A request that an engine has admitted; see ObservedRequest.

    Args:
        prompt_tokens: how many its prompt has.
        compute_from: of these not computed again.
        host_tokens: of those, loaded back from host.
        misses: why the others are.
    """

    __slots__ = ("cached_tokens", "compute_from", "host_tokens", "is_released", "misses", "prompt_tokens")

    def __init__(self, prompt_tokens: int, compute_from: int, host_tokens: int, misses: list[Miss]) -> None:
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = self.compute_from = compute_from
        self.host_tokens = host_tokens
        self.misses = misses
        self.is_released = True  # what it holds the engine knows
