"""The capacity of every message: settings that all ranks share."""

from __future__ import annotations

from dataclasses import dataclass

from unified_tree.terms.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageShape:
    """The capacity of a tick's message. What does not fit waits for a later tick.

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
                raise ConfigurationError(f"{name} must be a positive multiple of {step}, not {value!r}")
        if len(set(self.kinds)) != len(self.kinds) or not all(isinstance(kind, str) for kind in self.kinds):
            raise ConfigurationError(f"kinds must be names that differ, not {self.kinds!r}")
