"""Random mixes of requests as engines see them: shared heads, continued conversations, branches, aborts, namespaces."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Literal

Namespace = tuple[str | None, str | None, str | None]
"""`extra_key`, `cache_salt` and LoRA adapter of a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A client's request, with the largest number of prompt tokens that any cache may hold for it.

    `source` is the number of the request whose prompt and answer begin with the first `kept` tokens of this prompt.
    """

    number: int
    prompt: tuple[int, ...]
    new_tokens: int
    namespace: Namespace
    abort: Literal["no", "waiting", "running"] = "no"
    known_tokens: int = 0
    source: int | None = None
    kept: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MixSettings:
    """How large a mix is and what it holds."""

    waves: int = 12
    at_once: int = 6
    vocabulary: int = 512
    scale: int = 1
    """How many times as long the parts of prompts are."""
    longest: int = 320
    longest_answer: int = 48
    aborts: bool = True
    namespaces: bool = True
    adapters: tuple[str, ...] = ()
    """LoRA adapters, which requests ask for or not. Prompts are then continued with any, so that all have the same."""
    session_ids: bool = False
    """Whether most requests name a session, which another cache may know."""
    sessions: bool = False
    """Whether most requests continue an earlier one by SGLang's sessions, and do not send the whole prompt."""


@dataclass(slots=True)
class Mix:
    """Draws waves of requests by one seed; continues conversations by the answers that it is given.

    The draws do not depend on what an aborted request had answered, so any cache that answers right gets the same requests.
    """

    seed: int
    settings: MixSettings = field(default_factory=MixSettings)

    _random: random.Random = field(init=False)
    _heads: list[tuple[int, ...]] = field(init=False)
    _spoken: list[tuple[Namespace, tuple[int, ...], int]] = field(init=False, default_factory=list)
    _seen: dict[Namespace, list[tuple[int, ...]]] = field(init=False, default_factory=dict)
    _count: int = field(init=False, default=0)
    _waves: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._heads = [self._tokens(length) for length in (16, 40, 64, 100, 130)]

    def wave(self) -> list[Request]:
        """The next requests that arrive together; an empty list when the mix has ended."""
        if self._waves == self.settings.waves:
            return []
        self._waves += 1
        together = [self._request() for _ in range(self._random.randint(1, self.settings.at_once))]
        known = [self._known(request, together) for request in together]
        for request in together:
            self._seen.setdefault(request.namespace, []).append(request.prompt)
        return [replace(request, known_tokens=tokens) for request, tokens in zip(together, known, strict=True)]

    def answered(self, request: Request, answer: list[int]) -> None:
        """The answer of a request that came to its end, in the order of the requests."""
        if request.abort == "no":
            whole = (*request.prompt, *answer)
            self._spoken.append((request.namespace, whole, request.number))
            self._seen[request.namespace].append(whole)

    def _known(self, request: Request, together: list[Request]) -> int:
        """The longest head shared with what was served in the request's namespace before or arrives with it."""
        others = [each.prompt for each in together if each is not request and each.namespace == request.namespace]
        return max((_shared(request.prompt, text) for text in [*self._seen.get(request.namespace, ()), *others]), default=0)

    def _tokens(self, length: int) -> tuple[int, ...]:
        return tuple(self._random.randrange(self.settings.vocabulary) for _ in range(length * self.settings.scale))

    def _request(self) -> Request:
        draw, longest = self._random, self.settings.longest
        namespace = self._namespace()
        kind = draw.choices(("head", "continue", "branch", "again"), (3, 4, 2, 1))[0]
        mine = [(text, number) for owner, text, number in self._spoken if owner == namespace or self.settings.adapters]
        text: tuple[int, ...] = ()
        source: int | None = None
        if kind == "head" or not mine:
            prompt = draw.choice(self._heads) + self._tokens(draw.randint(1, 90))
        elif kind == "continue":
            text, source = draw.choice(mine[-6:])
            prompt = text + self._tokens(draw.randint(1, 60))
        elif kind == "branch":
            text, source = draw.choice(mine)
            prompt = text[: draw.randint(1, len(text))] + self._tokens(draw.randint(1, 60))
        else:
            text, source = draw.choice(mine)
            prompt = text
        if len(prompt) > longest:
            prompt = prompt[:longest]
        new_tokens = draw.randint(1, self.settings.longest_answer)
        abort: Literal["no", "waiting", "running"] = "no"
        if self.settings.aborts and draw.random() < 0.08:
            abort = draw.choice(("waiting", "running"))
        self._count += 1
        return Request(
            number=self._count,
            prompt=prompt,
            new_tokens=new_tokens + 16 if abort == "running" else new_tokens,
            namespace=namespace,
            abort=abort,
            source=source,
            kept=min(_shared(prompt, text), len(prompt) - 1),
        )

    def _namespace(self) -> Namespace:
        extra_key = salt = adapter = None
        if self.settings.namespaces:
            extra_key, salt = self._random.choices(((None, None), ("a", None), (None, "s"), ("a", "s")), (12, 2, 1, 1))[0]
        if self.settings.adapters:
            adapter = self._random.choice((None, *self.settings.adapters))
        return extra_key, salt, adapter


def _shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
