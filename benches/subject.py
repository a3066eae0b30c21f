"""What a scenario asks of a cache under test; one adapter a contestant.

Every timed method reads the clock itself, around the public calls that a scheduler would make and nothing else: the
adapter's own book-keeping stays outside. Making a key from a fresh token array is inside.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from time import thread_time_ns
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    Tokens: TypeAlias = array[int]
else:
    Tokens = array
"""Token ids: an array of type code "q", native int64."""
WINDOW_TOKENS = 512
"""Past tokens that the window of `full_swa` has."""
LONGEST_TOKENS = (1 << 20) + 4096
"""No request is longer."""
LOOK_NS = min(-thread_time_ns() + thread_time_ns() for _ in range(2000))
"""What a look at the processor's clock takes: not little, for it asks the system."""
PARTS = ("match", "lock", "pages", "evict", "allocate", "insert", "unlock")
"""What a request consists of, in order; each adapter times all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Pool sizes in tokens, and in states for recurrent kinds."""

    full_tokens: int
    window_tokens: int
    states: int


@dataclass(slots=True, kw_only=True)
class Request:
    """A request in flight: what `begin` found and `finish` needs.

    Attributes:
        cached_tokens: how long the match was.
        parts_ns: the time of each part so far.
        held: the adapter's own notes (boundary, receipt).
        written: tokens that its row of page ids holds for good.
    """

    cached_tokens: int
    parts_ns: dict[str, int] = field(default_factory=dict)
    held: Any = None
    written: int = 0

    def spend(self, part: str, spent_ns: int) -> None:
        """Add to a part's time what was between two looks at the processor's clock, less the look itself."""
        self.parts_ns[part] = self.parts_ns.get(part, 0) + max(0, spent_ns - LOOK_NS)


class UnsupportedError(Exception):
    """This contestant cannot do that: a missing operation, component set or page size."""


class Subject(Protocol):
    """A cache under test. Times are nanoseconds; lengths are tokens."""

    def open(self, components: str, page_size: int, capacity: Capacity | None) -> None:
        """Start with an empty cache of a component set (`full`, `full_swa`, `full_mamba`); no capacity means a roomy one.

        Raises UnsupportedError for what it cannot model.
        """

    def insert(self, tokens: Tokens, known_tokens: int) -> tuple[int, int]:
        """Insert `tokens`, of which the caller knows the first `known_tokens` to be cached: (time, matched length).

        Page ids for what is new are made outside the time.
        """
        ...

    def match(self, tokens: Tokens, *, with_pages: bool) -> tuple[int, int]:
        """Match; with the page ids handed out or without: (time, matched length)."""
        ...

    def find(self, tokens: Tokens) -> Any:
        """A handle of the whole prefix for `hold` and `lock_unlock`; not timed."""

    def hold(self, handle: Any) -> None:
        """Lock and keep locked; not timed."""

    def lock_unlock(self, handle: Any) -> int:
        """Lock a prefix and unlock it again: time."""
        ...

    def evict(self, pool: str, token_count: int) -> tuple[int, int]:
        """Free so many tokens (or states) of a pool: (time, how many were freed)."""
        ...

    def begin(self, prompt: Tokens) -> Request:
        """A request arrives: match all but its last token, lock, hand out the page ids."""
        ...

    def finish(self, request: Request, tokens: Tokens) -> None:
        """It ends with `tokens`: evict for lack of room, allocate, insert, unlock. Adds to `request.parts_ns`."""
