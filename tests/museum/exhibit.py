"""An exhibit of the museum: a published failure of a hybrid prefix cache as a small scripted workload.

A script is a list of steps; `exhibits.toml` has them all. Its tokens are invented; what decides is which prompts share how many
of them, in which order they come, and how large the pools are. The numbers are those of the thread where they are small, else
scaled down.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from unified_tree import Component, Path, Point, Trailing
from unified_tree.components import draft

PAGE = 16
"""Tokens a page, unless an exhibit says otherwise."""
GRID = 64
"""Tokens between two places where a state can be saved: the chunk of the usual scan kernels."""
WINDOW = 64
Tokens: TypeAlias = tuple[int, ...]
KINDS = {
    "full": Component(name="full", coverage=Path()),
    "swa": Component(name="swa", coverage=Trailing(WINDOW)),
    "swa, rebuilt": Component(name="swa", coverage=Trailing(WINDOW), rebuild_tokens=WINDOW),  # of a single layer
    "wide": Component(name="wide", coverage=Trailing(128)),
    "mamba": Component(name="mamba", coverage=Point(), save_grid_tokens=GRID),
    "draft": draft(page_size=PAGE),
    "draft over c4": Component(name="draft", coverage=Path(), required=False, shares="c4"),
    "draft that slides": Component(name="draft", coverage=Trailing(128), required=False),  # in a pool of its own
    "draft window": Component(name="draft window", coverage=Trailing(128), required=False),
    "c4": Component(name="c4", coverage=Path(), tokens_per_slot=4),  # DeepSeek-V4: KV compressed by 4
    "c128": Component(name="c128", coverage=Path(), tokens_per_slot=128),
    "swa of c4": Component(name="swa", coverage=Trailing(128), rebuild_tokens=256),  # of two layers
}
"""The components of exhibits, as `exhibits.toml` calls them."""


def text(name: str, tokens: int, begin: int = 0) -> Tokens:
    """The tokens [begin, tokens) of a text; texts of different names share none."""
    first = zlib.crc32(name.encode()) << 20
    return tuple(range(first + begin, first + tokens))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request: a prompt, and what is generated behind it.

    Attributes:
        checkpoints: lengths that the scheduler knows to be ends of turns or of a shared system prompt.
        keeps_output: whether the output is cached; False where no later prompt has it.
    """

    prompt: Tokens
    output: Tokens = ()
    namespace: str = ""
    checkpoints: tuple[int, ...] = ()
    keeps_output: bool = True


@dataclass(frozen=True, slots=True)
class Start:
    """A request is admitted and its prompt computed."""

    request: Request


@dataclass(frozen=True, slots=True)
class Finish:
    """The output of a request that runs is generated, and it ends."""

    request: Request


@dataclass(frozen=True, slots=True)
class Preempt:
    """A request that runs is retracted behind so many tokens of its output, to come again as a longer prompt."""

    request: Request
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Invalidate:
    """New weights for a namespace."""

    namespace: str


Step: TypeAlias = Start | Finish | Preempt | Invalidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """Where a failure was published.

    Attributes:
        repository: owner and name on GitHub.
        kind: `issues` or `pull`.
    """

    repository: str
    number: int
    kind: str

    @property
    def link(self) -> str:
        """Its address."""
        return f"https://github.com/{self.repository}/{self.kind}/{self.number}"

    @property
    def label(self) -> str:
        """The way one refers to it."""
        return f"{self.repository.split('/')[1]}#{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """A failure and its workload.

    Attributes:
        name: of the exhibit, as a test's id.
        title: what fails, in a few words.
        reported: what the thread reports.
        pools: device pages by component; `host`: host pages by component, None for no host tier. What is left out is unbounded.
        script: what happens.
        chunk_tokens: how many tokens a prefill computes at a time.
        block_tokens: the block of a model with states that the report names; only vLLM has one.
        write_back: whether pages are copied to host only when the device runs short, instead of at once.
        ceiling: how many prompt tokens can be hit at best by any cache with these pools, even one that knows the future.
        why: why it is that many.
        lost: tokens that this library computes although they were known, by the cause that it names. Empty at the ceiling,
            unless the pools force it.
        gap: how many tokens it stays below the ceiling.
        lesson: what this library does there, or what would close the gap.
    """

    name: str
    thread: Thread
    title: str
    reported: str
    components: tuple[Component, ...]
    script: tuple[Step, ...]
    ceiling: int
    why: str
    lesson: str
    page_size: int = PAGE
    pools: Mapping[str, int] = field(default_factory=dict)
    host: Mapping[str, int] | None = None
    chunk_tokens: int = 256
    block_tokens: int | None = None
    write_back: bool = False
    lost: Mapping[str, int] = field(default_factory=dict)
    gap: int = 0
