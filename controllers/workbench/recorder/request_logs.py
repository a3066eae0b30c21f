"""Request logs of SGLang and vLLM: the prompts that an engine writes into its log, as requests of a trace.

Read are

- SGLang's `--log-requests --log-requests-level 3`, as text or `--log-requests-format json`. Below level 3 prompts are cut or
  left out. The line of a finished request has its prompt, the lengths, and the cached tokens; the line of the same request
  when it came has its time.
- vLLM's `--enable-log-requests` with `VLLM_LOGGING_LEVEL=DEBUG`, without which it logs no prompts, and the form before that.
  `--enable-log-outputs` adds the answers. The log does not say what was cached, and `--max-log-len` cuts prompts unseen.

In lines of text the values stand as Python writes them. A line is cut into the fields that are asked for and whole string
literals by one regular expression, so that nothing inside a prompt's text is taken for a field. Other lines are passed over.
The time of a line has seconds, in vLLM without a year: what matters is the time between requests.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.workbench.recorder.block_hashes import token_bytes
from unified_tree.controllers.workbench.recorder.exchanges import Answered, namespace_of, prompts_in
from unified_tree.controllers.workbench.recorder.recorder import UNREADABLE, UnrecordedError
from unified_tree.inputs.given_files import NotJsonError, parse_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from unified_tree.controllers.workbench.recorder.prompt_tokens import PromptTokens
    from unified_tree.controllers.workbench.recorder.trace_writer import RecordedRequest

CUT = "the log has no whole prompt"
MAX_LINE_BYTES = 1 << 28
MAX_OPEN = 10_000
MAX_OPEN_MS = 600_000
"""So many requests may have come and not ended, and so long ago; the oldest is then recorded without its end."""
STRING = r"'[^'\\]*(?:\\.[^'\\]*)*'|\"[^\"\\]*(?:\\.[^\"\\]*)*\""
FIELDS = re.compile(
    rf"(?P<count>'(?:prompt_tokens|completion_tokens|cached_tokens)': \d{{1,12}}\b)"
    rf"|(?P<latency>'e2e_latency': [\d.]+)"
    rf"|'output_ids': (?P<output>\[[\d, ]*\](?P<output_cut> \.\.\.)?)"
    rf"|\b(?P<name>rid|text|input_ids|lora_path|extra_key|cache_salt|prompt|prompt_token_ids|output_token_ids|lora_name)"
    rf"(?:=|: )(?P<value>{STRING}|\[[\d, ]*\])(?P<cut> \.\.\.)?"
    rf"|{STRING}"
)
SGLANG = re.compile(rb"(?:^|\s)(Receive|Finish): obj=GenerateReqInput\(")
VLLM = re.compile(
    rb"\b(Received request|Request|Generated response) (\S+?)( details)?:? (?=prompt: |params: |output: |\(streaming )"
)
STAMP = re.compile(rb"(?:(\d{4})-)?(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
UNESCAPED = re.compile(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8}|.)", re.DOTALL)
DAY_MS = 86_400_000
LETTERS = {"n": "\n", "t": "\t", "r": "\r"}


@dataclass(slots=True)
class Logged:
    """The known facts of a request so far.

    Attributes:
        is_cut: whether the log has left out some of the prompt.
    """

    time_ms: int
    prompt: Any = None
    is_cut: bool = False
    namespace: str = ""
    answered: Answered = field(default_factory=Answered)


class LogReader:
    """Reads a log, line by line.

    Args:
        prompts: makes tokens of texts, where a log has no ids.
        lose: is told the reason for each request that cannot be recorded.

    Attributes:
        found: how many lines were of requests.
    """

    def __init__(self, prompts: PromptTokens, lose: Callable[[str], None]) -> None:
        self._prompts = prompts
        self._lose = lose
        self._open: OrderedDict[str, Logged] = OrderedDict()
        self._year = 1972  # of a log without years; one with a 29th of February
        self._last_ms = 0
        self.found = 0

    def read(self, lines: Iterable[bytes]) -> Iterator[RecordedRequest]:
        """The requests of a log, when they have ended; at its end those that have not. Cost: as parsing each line."""
        for line in lines:
            yield from self._guarded(line)
        yield from self.end()

    def end(self) -> Iterator[RecordedRequest]:
        """The requests that have not ended, as no more lines come."""
        while self._open:
            yield from self._requests(self._open.popitem(last=False)[1])

    def _guarded(self, line: bytes) -> Iterator[RecordedRequest]:
        try:
            yield from self._line(line)
        except UnrecordedError as error:
            self._lose(str(error))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            self._lose(UNREADABLE)
        while self._open and (
            len(self._open) > MAX_OPEN or self._last_ms - next(iter(self._open.values())).time_ms > MAX_OPEN_MS
        ):
            yield from self._requests(self._open.popitem(last=False)[1])

    def _line(self, line: bytes) -> Iterator[RecordedRequest]:
        if b'"event": "request.' in line[:400]:
            yield from self._json(line)
        elif found := SGLANG.search(line, 0, 400):
            yield from self._sglang(line, found[1] == b"Finish", found.end())
        elif found := VLLM.search(line, 0, 400):
            yield from self._vllm(line, found)

    def _json(self, line: bytes) -> Iterator[RecordedRequest]:
        """A line of SGLang's JSON log; something may stand before the object."""
        try:
            event = parse_json(line[line.index(b"{") :])
        except NotJsonError as error:
            raise UnrecordedError("the body is no JSON") from error
        asked = event.get("obj")
        if event.get("event") not in ("request.received", "request.finished") or not isinstance(asked, dict):
            return
        self.found += 1
        moment = datetime.fromisoformat(event["timestamp"])
        time_ms = self._last_ms = round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
        name = str(event.get("rid"))
        logged = self._came(name, time_ms)
        if event["event"] == "request.received":
            return
        out = event["out"]
        out = out if isinstance(out, dict) else {}
        meta = out.get("meta_info") or {}
        self._ended(name, logged, time_ms, meta.get("e2e_latency"))
        logged.prompt = asked.get("input_ids") or asked.get("text")
        logged.is_cut = is_cut_json(asked.get("input_ids")) or (not asked.get("input_ids") and is_cut_json(logged.prompt))
        logged.namespace = namespace_of(asked.get("extra_key"), asked.get("cache_salt"), asked.get("lora_path"))
        logged.answered.read_counts(meta)
        output = out.get("output_ids")
        logged.answered.output = output if isinstance(output, list) and not is_cut_json(output) else []
        yield from self._requests(logged)

    def _sglang(self, line: bytes, is_end: bool, begin: int) -> Iterator[RecordedRequest]:
        """A line of SGLang's text log."""
        self.found += 1
        time_ms, logged_fields = self._time_ms(line), Fields(line[begin:])
        name = logged_fields.text("rid") or ""
        logged = self._came(name, time_ms)
        if not is_end:
            return
        self._ended(name, logged, time_ms, logged_fields.latency_s)
        ids = logged_fields.ids("input_ids")
        logged.prompt = ids or logged_fields.text("text")
        logged.is_cut = ("input_ids" if ids else "text") in logged_fields.cut
        logged.namespace = namespace_of(*(logged_fields.text(each) for each in ("extra_key", "cache_salt", "lora_path")))
        logged.answered.read_counts(logged_fields.counts)
        logged.answered.output = logged_fields.output
        yield from self._requests(logged)

    def _vllm(self, line: bytes, found: re.Match[bytes]) -> Iterator[RecordedRequest]:
        """A line of vLLM's log."""
        self.found += 1
        name, fields = found[2].decode("utf-8", "replace"), Fields(line[found.end() :])
        if found[1] != b"Generated response":
            logged = self._came(name, self._time_ms(line))
            prompt = fields.ids("prompt_token_ids") or fields.text("prompt")
            logged.prompt = prompt if logged.prompt is None else logged.prompt
            logged.namespace = namespace_of(adapter=fields.text("lora_name")) or logged.namespace
            return
        logged_open = self._open.get(name)
        if logged_open is None:
            return
        output, answered = fields.ids("output_token_ids") or [], logged_open.answered
        if line.startswith(b"(streaming delta)", found.end()):
            answered.output += output
            return
        if not line.startswith(b"(streaming", found.end()) or output:
            answered.output = output
        answered.output_tokens = len(answered.output)
        del self._open[name]
        yield from self._requests(logged_open)

    def _came(self, name: str, time_ms: int) -> Logged:
        """The request of a name; a new one if it is not open."""
        logged = self._open.get(name)
        if logged is None:
            logged = self._open[name] = Logged(time_ms)
        return logged

    def _ended(self, name: str, logged: Logged, time_ms: int, latency_s: Any) -> None:
        """Close a request. One whose beginning was not in the log began its latency ago."""
        del self._open[name]
        if logged.time_ms == time_ms and type(latency_s) in (int, float) and 0 <= latency_s < 1e6:
            logged.time_ms = time_ms - round(latency_s * 1000)

    def _requests(self, logged: Logged) -> Iterator[RecordedRequest]:
        if logged.prompt is None or logged.is_cut:
            self._lose(CUT)
            return
        try:
            given = prompts_in(logged.prompt)
            for prompt in given:
                answered = logged.answered if len(given) == 1 else Answered()
                if isinstance(prompt, str):
                    tokens, is_exact, answered.output = self._prompts.of_text(prompt), self._prompts.is_exact, []
                else:
                    tokens, is_exact = token_bytes(prompt), True
                yield answered.recorded(logged.time_ms, tokens, is_exact=is_exact, namespace=logged.namespace)
        except (TypeError, ValueError, OverflowError):
            self._lose(UNREADABLE)

    def _time_ms(self, line: bytes) -> int:
        """The time before the message, as if it was UTC; that of the line before where there is none."""
        found = STAMP.search(line, 0, 200)
        if found is None:
            return self._last_ms
        year, *parts = (0 if part is None else int(part) for part in found.groups()[:6])
        fraction = (found[7] or b"").ljust(3, b"0")[:3]
        month, day, hour, minute, second = parts
        moment = datetime(year or self._year, month, day, hour, minute, second, tzinfo=UTC)
        if not year and moment.timestamp() * 1000 < self._last_ms - 180 * DAY_MS:  # a new year has begun
            self._year += 1
            moment = moment.replace(year=self._year)
        self._last_ms = round(moment.timestamp() * 1000) + int(fraction)
        return self._last_ms


class Fields:
    """The fields of a line of text.

    Attributes:
        counts: lengths by SGLang's names.
        cut: names of fields that the log has cut.
        latency_s: how long the request took; None if that is not said.
        output: token ids of the answer.
    """

    def __init__(self, text: bytes) -> None:
        self._values: dict[str, str] = {}
        self.counts: dict[str, int] = {}
        self.cut: set[str] = set()
        self.latency_s: float | None = None
        self.output: list[int] = []
        for found in FIELDS.finditer(text.decode("utf-8", "replace")):
            if name := found["name"]:
                self._values.setdefault(name, found["value"])
                if found["cut"]:
                    self.cut.add(name)
            elif found["count"]:
                name, _, count = found["count"].partition(": ")
                self.counts.setdefault(name[1:-1], int(count))
            elif found["latency"]:
                self.latency_s = float(found["latency"].rpartition(" ")[2])
            elif found["output"] and not found["output_cut"]:
                self.output = _ids(found["output"])

    def text(self, name: str) -> str | None:
        """A field that is a string; None if it is none."""
        value = self._values.get(name, "")
        return UNESCAPED.sub(_letter, value[1:-1]) if value[:1] in ("'", '"') else None

    def ids(self, name: str) -> list[int] | None:
        """A field that is a list of integers; None if it is none."""
        value = self._values.get(name, "")
        return _ids(value) if value.startswith("[") else None


def _ids(text: str) -> list[int]:
    return [int(part) for part in text[1:-1].split(",") if part.strip()]


def _letter(found: re.Match[str]) -> str:
    code = found[1]
    return chr(int(code[1:], 16)) if len(code) > 1 else LETTERS.get(code, code)


def is_cut_json(value: Any) -> bool:
    """Whether SGLang has left out the middle of a text or a list: it shows 2,048 letters or items, with three dots between."""
    if isinstance(value, str):
        return len(value) == 2051 and value[1024:1027] == "..."
    return isinstance(value, list) and (
        any(is_cut_json(each) for each in value if isinstance(each, list)) or (len(value) == 2049 and value[1024] == "...")
    )


def lines_of(stream: Any) -> Iterator[bytes]:
    """The lines of a log; of one that is longer than 256 MiB nothing."""
    while line := stream.readline(MAX_LINE_BYTES + 1):
        if len(line) <= MAX_LINE_BYTES:
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = stream.readline(MAX_LINE_BYTES)
