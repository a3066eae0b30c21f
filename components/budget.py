"""How a device budget is split between pools: a proposal, sized by the number of boundaries worth keeping.

A `Path` pool holds tokens; a window or state pool holds boundaries (lengths one can resume from). One number relates the two:
the tokens of path per boundary worth keeping. Pool sizes grow with the number of path pages, so bisection finds the largest
split that fits; a formula would have to know every limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from unified_tree.declare.component import Component
from unified_tree.terms.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetPolicy:
    """The choices behind a split; see `Composition.split_budget`."""

    tokens_between_boundaries: int
    running_requests: int
    min_path_share: float
    request_tokens: int | None = None
    page_counts: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("tokens_between_boundaries", "running_requests"):
            value = getattr(self, name)
            if type(value) is not int or value <= 0:
                raise ConfigurationError(f"split_budget: {name} must be a positive integer, not {value!r}")
        if self.request_tokens is not None and (type(self.request_tokens) is not int or self.request_tokens <= 0):
            raise ConfigurationError(f"split_budget: request_tokens must be a positive integer, not {self.request_tokens!r}")
        if not 0 <= self.min_path_share <= 1:
            raise ConfigurationError(f"split_budget: min_path_share must be from 0 to 1, not {self.min_path_share!r}")


def split(
    device_bytes: int,
    *,
    owners: Sequence[Component],
    page_bytes: Mapping[str, int],
    page_size: int,
    longest_window_tokens: int,
    policy: BudgetPolicy,
) -> dict[str, int]:
    """Page counts by owner, within `device_bytes`. See `Composition.split_budget`. Cost: O(owners · log pages)."""
    if type(device_bytes) is not int or device_bytes <= 0:
        raise ConfigurationError(f"split_budget: device_bytes must be a positive integer, not {device_bytes!r}")
    empty = [c.name for c in owners if not page_bytes[c.name]]
    if empty:
        raise ConfigurationError(f"split_budget: {empty[0]}: page_bytes is 0, so no number of pages can be proposed")
    fixed = _checked_page_counts(policy.page_counts, owners)
    request_tokens = policy.request_tokens or longest_window_tokens + page_size
    minimum = {c.name: fixed.get(c.name, _pages_for_one_request(c, request_tokens, page_size)) for c in owners}

    def cost(pages: Mapping[str, int]) -> int:
        return sum(count * page_bytes[name] for name, count in pages.items())

    if cost(minimum) > device_bytes:
        raise ConfigurationError(
            f"split_budget: {device_bytes} bytes cannot hold one request of {request_tokens} tokens: {cost(minimum)} are needed"
        )

    def sized(path_pages: int, boundaries: int) -> dict[str, int]:
        pages = {}
        for c in owners:
            wanted = path_pages if c.coverage.is_path else _pages_for_boundaries(c, boundaries, path_pages, page_size)
            pages[c.name] = fixed.get(c.name, max(minimum[c.name], wanted))
        return pages

    def with_boundaries(path_pages: int) -> dict[str, int]:
        saved = -(-path_pages * page_size // policy.tokens_between_boundaries)
        return sized(path_pages, saved + policy.running_requests)

    max_pages = device_bytes // min(page_bytes[c.name] for c in owners)
    path_pages = _largest(lambda n: cost(with_boundaries(n)) <= device_bytes, max_pages)
    proportional = with_boundaries(path_pages)
    share = _largest(lambda n: _path_cost(owners, sized(n, 0), page_bytes) <= device_bytes * policy.min_path_share, max_pages)
    if path_pages >= share and cost(proportional) <= device_bytes:
        return proportional
    path_pages = _largest(lambda n: cost(sized(n, 0)) <= device_bytes, share)
    boundaries = _largest(lambda n: cost(sized(path_pages, n)) <= device_bytes, max_pages)
    return sized(path_pages, boundaries)


def _pages_for_one_request(component: Component, request_tokens: int, page_size: int) -> int:
    """The minimum of pages for one request to run and be resumed. A window needs the pages it reads and the page it fills next.
    A state needs two: the saved one and the request's own.
    """
    if component.coverage.is_path:
        return component.coverage.pages_needed(request_tokens, page_size)
    return component.coverage.boundary_pages(page_size) + 1


def _pages_for_boundaries(component: Component, boundaries: int, path_pages: int, page_size: int) -> int:
    pages = boundaries * component.coverage.boundary_pages(page_size)
    return pages if component.coverage.is_exact else min(pages, path_pages)


def _path_cost(owners: Sequence[Component], pages: Mapping[str, int], page_bytes: Mapping[str, int]) -> int:
    return sum(pages[c.name] * page_bytes[c.name] for c in owners if c.coverage.is_path)


def _checked_page_counts(page_counts: Mapping[str, int], owners: Sequence[Component]) -> dict[str, int]:
    names = [c.name for c in owners]
    for name, count in page_counts.items():
        if name not in names:
            raise ConfigurationError(f"split_budget: page_counts names {name!r}; the pools are {', '.join(names)}")
        if type(count) is not int or count <= 0:
            raise ConfigurationError(f"split_budget: page_counts[{name!r}] must be a positive integer, not {count!r}")
    return dict(page_counts)


def _largest(fits: Callable[[int], bool], max_pages: int) -> int:
    """The largest number of `0..most` that fits, for a `fits` that holds up to some number; 0 where none does."""
    low, high = 0, max_pages
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
