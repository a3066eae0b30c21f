"""What the SGLang backend does not support, said once: for a model that is being served, and for one that may be."""

from __future__ import annotations

from dataclasses import dataclass

ALLOCATORS = ("TokenToKVPoolAllocator", "PagedTokenToKVPoolAllocator", "SWATokenToKVPoolAllocator")
"""SGLang's allocators whose slots the backend can own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What of a model and of its settings decides whether the backend can serve it.

    Attributes:
        allocator: SGLang's allocator of slots, by its class; None before it is made.
        has_full_attention: at least one layer attends to all tokens.
        has_states: some layers are recurrent.
        windows_by_request: windows are kept by request instead of by token.
        has_bounded_replay: the decoder replays windows in bounds.
        other_state: kinds of state that SGLang keeps in pools of its own.
        has_int8_checkpoints: `--enable-int8-mamba-checkpoint`.
        has_replay_ssm: ReplaySSM.
        is_eagle: the keys are EAGLE's bigrams.
        has_extra_buffer: states are saved on a grid (`--mamba-scheduler-strategy extra_buffer`).
        page_size: tokens a page.
    """

    allocator: str | None = None
    has_full_attention: bool = True
    has_states: bool = False
    windows_by_request: bool = False
    has_bounded_replay: bool = False
    other_state: tuple[str, ...] = ()
    has_int8_checkpoints: bool = False
    has_replay_ssm: bool = False
    is_eagle: bool = False
    has_extra_buffer: bool = False
    page_size: int = 1

    def refusals(self) -> list[str]:
        """Why the backend refuses it, each reason a noun in words; empty if it does not."""
        checks = (
            (self.allocator is not None and self.allocator not in ALLOCATORS, f"the allocator {self.allocator}"),
            (not self.has_full_attention, "models without any full attention"),
            (self.windows_by_request, "windows that are kept by request instead of by token"),
            (self.has_bounded_replay, "bounded replay of windows in the decoder"),
            (bool(self.other_state), f"the state {', '.join(self.other_state)}, for which SGLang has allocators of its own"),
            (self.has_int8_checkpoints, "--enable-int8-mamba-checkpoint"),
            (self.has_replay_ssm, "ReplaySSM"),
            (self.has_states and self.is_eagle, "EAGLE on models with recurrent states"),
            (
                self.has_states and not self.has_extra_buffer and self.page_size != 1,
                "recurrent states without the extra buffer at another page size than 1",
            ),
        )
        return [reason for is_so, reason in checks if is_so]
