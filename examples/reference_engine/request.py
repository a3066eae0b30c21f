"""A client's request, and its progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from unified_tree.declare.keys import Key

if TYPE_CHECKING:
    from reference_engine.model_runner import ModelRunner
    from reference_engine.sequence_rows import SequenceRows
    from unified_tree.controllers.cache.lease import Lease


@dataclass(slots=True, eq=False)
class Running:
    """What a request holds while it runs.

    Attributes:
        lease: on its pages.
        rows: its state in them.
        runner: the model, at the weights that it started with.
        computed: tokens whose state is written.
        drafted: tokens whose draft state is written; -1 for a request that decodes without a draft.
    """

    lease: Lease
    rows: SequenceRows
    runner: ModelRunner
    computed: int
    drafted: int = -1


@dataclass(slots=True, eq=False, kw_only=True)
class Request:
    """A prompt to continue.

    Attributes:
        prompt: token ids.
        new_tokens: how many tokens to generate.
        namespace: tenant or LoRA; picks the model too.
        checkpoints: lengths where later prompts are likely to branch off.
        save_output: whether later prompts may go on from the output.
        output: tokens generated so far.
        running: None while it waits, and when it has finished.
        preemptions: how often it lost its pages.
        load_failed: a load failed it; it does without loads from then on.
    """

    prompt: Sequence[int]
    new_tokens: int
    namespace: str = ""
    checkpoints: Sequence[int] = ()
    save_output: bool = True
    output: list[int] = field(default_factory=list)
    running: Running | None = None
    preemptions: int = 0
    load_failed: bool = False
    _key: Key | None = field(default=None, init=False, repr=False)

    @property
    def tokens(self) -> list[int]:
        """Prompt and output."""
        return [*self.prompt, *self.output]

    def key(self) -> Key:
        """What it is looked up by. The same object until a token is added, so the cache compares it only once."""
        if self._key is None or self._key.length != len(self.prompt) + len(self.output):
            self._key = Key(self.tokens, self.namespace)
        return self._key

    @property
    def finished(self) -> bool:
        """Whether all tokens asked for are there."""
        return len(self.output) >= self.new_tokens
