"""The exhibits of the museum: published failures of hybrid prefix caches, each as a small scripted workload.

Its tokens are invented; what decides is which prompts share how many of them, in which order they come, and how large the pools
are. The numbers are those of the thread where they are small, else scaled down.

`exhibits.toml` has them all. A script there is a list of lines, each a request that is served to its end, unless it begins with
a verb:

    n<3 s<4: lora=a | system 256, question {n} 20+64n -> answer 16 @ 256 999

For every `n` below 3, and in it every `s` below 4: in the namespace `lora=a` a prompt of 256 tokens of the text `system` and
20 + 64 n of `question 0` and so on, 16 tokens of `answer` as output (`~>`: which is not cached), checkpoints at 256 and 999.
`100..200` are the tokens of a text from 100 to 200. The verbs: `start` a request, `finish` it or `preempt` it behind so many
output tokens, and `invalidate` a namespace.
"""

from __future__ import annotations

import re
import tomllib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path as FilePath
from typing import Any, TypeAlias

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

    @property
    def is_of_an_engine(self) -> bool:
        """Whether an engine's core alone can play it: no host tier, nothing that is decided above, no kind of its own."""
        if self.host is not None or any(
            isinstance(step, Preempt | Invalidate) or step.request.namespace for step in self.script
        ):
            return False
        return all(component.required or component.shares == "full" for component in self.components)


FILE = FilePath(__file__).with_name("exhibits.toml")
LOOPS = re.compile(r"((?:[a-z]<\d+ ?)+): (.*)")
LINE = re.compile(r"(?:(?P<namespace>\S*) \| )?(?P<prompt>.+?)(?: (?P<kept>[-~])> (?P<output>.+?))?(?: @ (?P<ends>.+))?")


@dataclass(frozen=True, slots=True)
class Hall:
    """Exhibits of one kind: its name, and what fails there."""

    name: str
    what: str
    exhibits: tuple[Exhibit, ...]


def number(word: str, at: dict[str, int]) -> int:
    """`20`, or `20+64n` with what the loops are at."""
    base, _, more = word.partition("+")
    return int(base) + (int(more[:-1]) * at[more[-1]] if more else 0)


def tokens(words: str, at: dict[str, int]) -> Tokens:
    """Parts of texts, one behind the other."""
    parts: Tokens = ()
    for part in words.split(", "):
        name, _, span = part.rpartition(" ")
        begin, _, end = span.rpartition("..")
        parts += text(name.format(**at), number(end, at), number(begin or "0", at))
    return parts


def request(line: str, at: dict[str, int]) -> Request:
    """What a line says, with what the loops are at."""
    found = LINE.fullmatch(line)
    assert found is not None, line
    return Request(
        prompt=tokens(found["prompt"], at),
        output=tokens(found["output"], at) if found["output"] else (),
        namespace=found["namespace"] or "",
        checkpoints=tuple(number(end, at) for end in (found["ends"] or "").split()),
        keeps_output=found["kept"] != "~",
    )


def steps(lines: list[str]) -> Iterator[Step]:
    """A script's steps."""
    running: Request | None = None
    for line in lines:
        verb, _, rest = line.partition(" ")
        if verb == "invalidate":
            yield Invalidate(rest)
        elif verb == "start":
            running = request(rest, {})
            yield Start(running)
        elif verb in ("finish", "preempt"):
            assert running is not None, line
            yield Finish(running) if verb == "finish" else Preempt(running, int(rest))
        else:
            looped = LOOPS.fullmatch(line)
            loops = [each.split("<") for each in looped[1].split()] if looped else []
            for values in product(*(range(int(below)) for _, below in loops)):
                served = request(looped[2] if looped else line, dict(zip((name for name, _ in loops), values, strict=True)))
                yield from (Start(served), Finish(served))


def exhibit(record: dict[str, Any]) -> Exhibit:
    """An exhibit of the file."""
    repository, kind, thread = record.pop("thread").rsplit("/", 2)
    return Exhibit(
        thread=Thread(repository=repository, number=int(thread), kind=kind),
        components=tuple(KINDS[kind] for kind in record.pop("components")),
        script=tuple(steps(record.pop("script"))),
        **record,
    )


HALLS = tuple(
    Hall(each["name"], each["what"], tuple(map(exhibit, each["exhibits"])))
    for each in tomllib.loads(FILE.read_text(encoding="utf-8"))["halls"]
)
EXHIBITS: tuple[Exhibit, ...] = tuple(each for hall in HALLS for each in hall.exhibits)
