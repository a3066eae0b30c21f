"""The binary format of a tick's message, and how the messages of all ranks are reduced to one.

Everything is encoded in bits, and all ranks' messages are reduced by bitwise AND, which gloo does in one collective:

- a set of lengths is a bit a length: AND is the intersection;
- operations finished are a bit each, in the order they were begun: in the AND the run of ones from the start is as long as
  the shortest on any rank, the minimum of the counts, though ranks finish them in any order;
- a flag is true if it is true on all ranks;
- equality: a value is sent with its complement, and what differs on two ranks leaves a 0 bit in the AND of both;
- a rank's own bytes are the AND of what it wrote and the ones that all others wrote there: this gathers them.

A bit of 1 is therefore neutral, and `neutral` is a message of ones. The alternative, an integer a lane under MIN, needs a lane
a length and eight times the bytes.

Layout, integers little-endian, bits from the lowest of a byte:

    for each rank, 24 bytes       views
        8   tick                  how many messages this rank sent before
        16  history               digest of what was folded; both 0xff… in the places of other ranks
    for each kind, completions / 4 bytes       counts
        completions / 8           finished: the operations after those agreed on before
        completions / 8           succeeded: 0 for those that failed here
    for each slot, 33 + candidates / 8 bytes   slots
        1   flags                 bit 0 OPENED here, bit 1 VOTED here, bit 2 WANTED, not cancelled here; others 1
        16  identity              digest of ticket, page count and identity; 0xff… before it is opened here
        16  complement            of the identity; 0xff… before it is opened here
        candidates / 8            lengths: those this rank can restore, 0 before it has voted

The slots hold the lowest tickets that are not agreed on, in ascending order: that depends on nothing but earlier agreements.
With the defaults a message of 4 ranks has 96 + 256 + 2312 = 2664 bytes.

Before the first message come 48 bytes of another kind:

        32  shape                 its digest and the complement
        16  session               drawn at random by rank 0; others 0xff…

It detects different shapes, because messages of different sizes would abort the process inside gloo. The session is a random id
of this group of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b

from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import ConfigurationError, DivergenceError


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageShape:
    """The capacity of a tick's message. Votes and reports beyond it wait for a later tick.

    Attributes:
        slots: tickets that are voted on at once; later ones wait until an earlier one is decided or cancelled.
        candidates: lengths of a ticket that are voted on at once, from the longest down; a multiple of 8. If none of them is
            agreed on, the next shorter ones follow in the next tick.
        completions: maximum number of operations of a kind that one tick can report as finished; a multiple of 8.
        kinds: names of the operations that are counted, all different.
        furthest: how far the number of a finished operation may be ahead of those that all ranks have finished; a larger number
            is an error. Not part of a message.
    """

    slots: int = 8
    candidates: int = 2048
    completions: int = 256
    kinds: tuple[str, ...] = ("backup", "load", "persist", "prefetch")
    furthest: int = 1 << 20

    def __post_init__(self) -> None:
        for name, step in (("slots", 1), ("candidates", 8), ("completions", 8), ("furthest", 1)):
            value = getattr(self, name)
            if type(value) is not int or value <= 0 or value % step:
                raise ConfigurationError(f"{name} must be a positive multiple of {step}, not {repr_of(value)}")
        if len(set(self.kinds)) != len(self.kinds) or not all(isinstance(kind, str) for kind in self.kinds):
            raise ConfigurationError(f"kinds must be names that differ, not {repr_of(self.kinds)}")


LAYOUT_VERSION = 3
TICK_BYTES = 8
DIGEST_BYTES = 16
SESSION_BYTES = 16
VIEW_BYTES = TICK_BYTES + DIGEST_BYTES
OPENED, VOTED, WANTED = 1, 2, 4
FLAGS = OPENED | VOTED | WANTED

Message = bytes


def count_bytes(shape: MessageShape) -> int:
    """The size of one kind's count."""
    return shape.completions // 4


def slot_bytes(shape: MessageShape) -> int:
    """The size of a slot."""
    return 1 + 2 * DIGEST_BYTES + shape.candidates // 8


def message_bytes(shape: MessageShape, ranks: int) -> int:
    """The size of every message but the opening one.

    >>> message_bytes(MessageShape(), 4)
    2664
    """
    return ranks * VIEW_BYTES + len(shape.kinds) * count_bytes(shape) + shape.slots * slot_bytes(shape)


def neutral(size: int) -> bytes:
    """So many neutral bytes: the AND of any with them is those."""
    return b"\xff" * size


def opening_message(shape: MessageShape, ranks: int, session: bytes | None) -> Message:
    """The 48 bytes before the first message.

    Args:
        session: what rank 0 has drawn; None on all others.
    """
    said = repr((LAYOUT_VERSION, shape.slots, shape.candidates, shape.completions, shape.kinds, ranks)).encode()
    return with_complement(blake2b(said, digest_size=DIGEST_BYTES).digest()) + (session or neutral(SESSION_BYTES))


def session_of(reduced: Message) -> bytes:
    """The session id. Raises DivergenceError if the ranks have different shapes."""
    if not are_equal(reduced[: 2 * DIGEST_BYTES]):
        raise DivergenceError(
            "ranks were made with different message shapes, or by different versions of this library: give all of them the "
            "same slots, candidates, completions and kinds"
        )
    return reduced[2 * DIGEST_BYTES :]


def with_complement(digest: bytes) -> bytes:
    """A digest and its complement, one after the other."""
    return digest + bytes(0xFF ^ byte for byte in digest)


def are_equal(reduced: bytes) -> bool:
    """Whether all ranks that wrote a value wrote the same, given the AND of the values with their complements.

    >>> one, other = with_complement(bytes([5])), with_complement(bytes([7]))
    >>> [are_equal(bytes(a & b for a, b in zip(one, by, strict=True))) for by in (one, other)]
    [True, False]
    """
    half = len(reduced) // 2
    value, complement = int.from_bytes(reduced[:half], "little"), int.from_bytes(reduced[half:], "little")
    return value | complement == (1 << 8 * half) - 1
