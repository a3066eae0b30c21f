"""The collection: all exhibits, by hall, read from `exhibits.toml`.

A script there is a list of lines, each a request that is served to its end, unless it begins with a verb:

    n<3 s<4: lora=a | system 256, question {n} 20+64n -> answer 16 @ 256 999

For every `n` below 3, and in it every `s` below 4: in the namespace `lora=a` a prompt of 256 tokens of the text `system` and
20 + 64 n of `question 0` and so on, 16 tokens of `answer` as output (`~>`: which is not cached), checkpoints at 256 and 999.
`100..200` are the tokens of a text from 100 to 200. The verbs: `start` a request, `finish` it or `preempt` it behind so many
output tokens, and `invalidate` a namespace.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from exhibit import KINDS, Exhibit, Finish, Invalidate, Preempt, Request, Start, Step, Thread, Tokens, text

FILE = Path(__file__).with_name("exhibits.toml")
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
