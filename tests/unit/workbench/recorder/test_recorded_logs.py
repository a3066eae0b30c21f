"""Request logs of SGLang and vLLM as their own loggers write them, some fields left out."""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_tree.controllers.workbench.recorder.block_hashes import token_bytes
from unified_tree.controllers.workbench.recorder.prompt_tokens import PromptTokens
from unified_tree.controllers.workbench.recorder.request_logs import CUT, MAX_OPEN, LogReader, lines_of
from unified_tree.controllers.workbench.recorder.trace_writer import RecordedRequest

IDS = list(range(9))
TEXTS = PromptTokens(lambda text, _: [ord(letter) for letter in text])


def read(lines: Iterable[str], prompts: PromptTokens = TEXTS) -> tuple[list[RecordedRequest], Counter[str]]:
    lost: Counter[str] = Counter()

    def lose(reason: str) -> None:
        lost[reason] += 1

    return list(LogReader(prompts, lose).read(line.encode() + b"\n" for line in lines)), lost


def received(name: str = "r1", ids: Any = IDS, second: int = 15, text: Any = None) -> str:
    return (
        f"[2026-11-28 21:25:{second:02}] Receive: obj=GenerateReqInput(rid={name!r}, session_id=None, text={text!r}, "
        f"input_ids={ids}, input_embeds=None, sampling_params={{'max_new_tokens': 3}}, extra_key=None, cache_salt=None)"
    )


def finished(name: str = "r1", ids: Any = IDS, second: int = 17, text: Any = None, salt: Any = None, answer: str = "x") -> str:
    meta = {"id": name, "prompt_tokens": 9, "completion_tokens": 3, "cached_tokens": 4, "e2e_latency": 0.5}
    return (
        f"[2026-11-28 21:25:{second:02}] Finish: obj=GenerateReqInput(rid={name!r}, session_id=None, text={text!r}, "
        f"input_ids={ids}, extra_key=None, cache_salt={salt!r}), "
        f"out={{'text': {answer!r}, 'output_ids': [7, 8, 9], 'meta_info': {meta}}}"
    )


def json_line(event: str, second: float, ids: Any = IDS, **given: Any) -> str:
    fields = {"timestamp": f"2026-11-28T21:25:{second:09.6f}", "event": f"request.{event}", "rid": "r1"}
    asked = {"rid": "r1", "text": None, "input_ids": ids, "cache_salt": None, **given}
    meta = {"prompt_tokens": 9, "completion_tokens": 3, "cached_tokens": 4, "e2e_latency": 0.5}
    out = {"out": {"text": "x", "output_ids": [7, 8, 9], "meta_info": meta}} if event == "finished" else {}
    return "[2026-11-28 21:25:15] " + json.dumps({**fields, "obj": asked, **out})


def test_a_finished_request_of_sglang_has_all() -> None:
    for lines in (
        [received(second=15), "[2026-11-28 21:25:16] Prefill batch, #new-token: 9", finished()],
        [json_line("received", 15), "", json_line("finished", 17)],
    ):
        [request], lost = read(lines)
        assert request == RecordedRequest(
            time_ms=1_795_901_115_000,
            tokens=token_bytes(IDS),
            prompt_tokens=9,
            output_tokens=3,
            cached_tokens=4,
            answer=token_bytes([7, 8, 9]),
        )
        assert not lost


def test_a_request_whose_beginning_is_missing_began_its_latency_ago() -> None:
    for line in (finished(), json_line("finished", 17)):
        [request], _ = read([line])
        assert request.time_ms == 1_795_901_116_500


def test_texts_are_tokenised_and_say_nothing_else() -> None:
    text = "say 'input_ids=[1, 2]' \n\\ \xe9"
    answer = "it's \"a\" 'prompt_tokens': 99, 'output_ids': [1]"
    for line in (finished(ids=None, text=text, answer=answer), json_line("finished", 17, None, text=text)):
        [request], _ = read([line])
        assert request.tokens == token_bytes([ord(letter) for letter in text])
        assert (request.prompt_tokens, request.output_tokens, request.cached_tokens) == (9, 3, 4)


@given(st.text(), st.text())
def test_no_text_is_taken_for_a_field(text: str, answer: str) -> None:
    [request], lost = read([finished(ids=None, text="a" + text, answer=answer, salt="s")])
    surrogates = "".join(letter for letter in "a" + text if 0xD800 <= ord(letter) < 0xE000)
    assert surrogates or request.tokens == token_bytes([ord(letter) for letter in "a" + text])
    assert (request.namespace, request.prompt_tokens, request.cached_tokens) == ("(None, 's')", 9, 4)
    assert not lost


def test_a_cut_prompt_is_not_recorded() -> None:
    ids = f"{list(range(1024))} ... {list(range(1076, 2100))}"
    cut_list = [*range(1024), "...", *range(1024)]
    for line in (
        finished(ids=ids),
        finished(ids=None),
        json_line("finished", 17, cut_list),
        json_line("finished", 17, None, text="x" * 1024 + "..." + "x" * 1024),
    ):
        assert read([line]) == ([], {CUT: 1})
    assert len(read([json_line("finished", 17, list(range(5000)))])[0]) == 1


def test_several_prompts_of_one_request_are_several() -> None:
    requests, _ = read([json_line("finished", 17, [[1, 2], [1, 3]])])
    assert [(request.prompt_tokens, request.cached_tokens) for request in requests] == [(2, None), (2, None)]


def vllm(name: str, prompt: str = "'abc'", ids: Any = IDS, lora: str = "None", day: str = "11-28", second: int = 5) -> str:
    return (
        f"INFO {day} 21:06:{second:02} [logger.py:40] Received request {name}: prompt: {prompt}, params: SamplingParams(n=1, "
        f"stop=['x: y']), prompt_token_ids: {ids}, prompt_embeds shape: None, lora_request: {lora}."
    )


def test_requests_of_vllm_by_its_older_line() -> None:
    lora = "LoRARequest(lora_name='fox', lora_int_id=1, lora_path='p')"
    lines = [vllm("cmpl-1"), vllm("cmpl-2", second=6, lora=lora), vllm("cmpl-3", second=7, ids=None)]
    (one, two, three), lost = read(lines)
    assert one == RecordedRequest(time_ms=one.time_ms, tokens=token_bytes(IDS), prompt_tokens=9)
    assert (two.namespace, two.time_ms - one.time_ms) == ("(None, None, 'fox')", 1000)
    assert three.tokens == token_bytes([ord(letter) for letter in "abc"])
    assert not lost


def test_requests_of_vllm_by_its_two_lines_with_answers() -> None:
    lines = [
        "(APIServer pid=7) DEBUG 11-28 21:06:35 [request_logger.py:40] Request chatcmpl-1 details: prompt: 'a \"b\"', "
        f"prompt_token_ids: {IDS}, prompt_embeds shape: None.",
        "(APIServer pid=7) INFO 11-28 21:06:35 [request_logger.py:50] Received request chatcmpl-1: params: SamplingParams(), "
        "lora_request: None.",
        "INFO 11-28 21:06:36 [request_logger.py:80] Generated response chatcmpl-1 (streaming delta): output: 'x', "
        "output_token_ids: [7, 8], finish_reason: None",
        "INFO 11-28 21:06:36 [request_logger.py:80] Generated response chatcmpl-1 (streaming delta): output: 'x', "
        "output_token_ids: [9], finish_reason: None",
        "INFO 11-28 21:06:37 [request_logger.py:80] Generated response chatcmpl-1 (streaming complete): output: 'xx', "
        "output_token_ids: None, finish_reason: streaming_complete",
        f"DEBUG 11-28 21:06:38 [request_logger.py:40] Request cmpl-2 details: prompt: None, prompt_token_ids: {IDS}, "
        "prompt_embeds shape: None.",
        "INFO 11-28 21:06:39 [request_logger.py:80] Generated response cmpl-2: output: 'x', output_token_ids: [5], "
        "finish_reason: stop",
        "INFO 11-28 21:06:39 [request_logger.py:50] Received request cmpl-3: params: SamplingParams(n=1), lora_request: None.",
    ]
    (one, two), lost = read(lines)
    assert (one.output_tokens, one.answer, one.tokens) == (3, token_bytes([7, 8, 9]), token_bytes(IDS))
    assert (two.output_tokens, two.time_ms - one.time_ms) == (1, 3000)
    assert lost == {CUT: 1}, "a log without prompts"


def test_a_year_may_end_in_a_log_that_has_none() -> None:
    (one, two), _ = read([vllm("cmpl-1", day="12-31"), vllm("cmpl-2", day="01-01")])
    assert two.time_ms - one.time_ms == 86_400_000


def test_what_never_ends_is_bounded() -> None:
    requests, lost = read([vllm(f"cmpl-{at}") for at in range(MAX_OPEN + 5)])
    assert len(requests) == MAX_OPEN + 5 and not lost
    reader = LogReader(TEXTS, lambda _: None)
    late = vllm("cmpl-2").replace("21:06", "21:17")
    stream = reader.read(line.encode() for line in (vllm("cmpl-1"), late, late))
    assert next(stream).prompt_tokens == 9, "after ten minutes of the log's clock"


@pytest.mark.parametrize(
    "line",
    [
        '{"event": "request.finished", "rid": 1, "obj": {}',
        '{"event": "request.finished", "rid": 1, "obj": {"input_ids": [1]}}',
        '{"event": "request.finished", "timestamp": "soon", "obj": {"input_ids": [1]}, "out": {}}',
        '{"event": "request.finished", "timestamp": "2026-11-28T21:25:15", "obj": {"input_ids": [-1]}, "out": {}}',
        '{"event": "request.finished", "timestamp": "2026-11-28T21:25:15", "obj": {"input_ids": "' + "[" * 9 + '"',
    ],
)
def test_a_line_that_cannot_be_read_costs_only_itself(line: str) -> None:
    requests, lost = read([line, finished()])
    assert len(requests) == 1 and lost.total() <= 1


@given(
    st.lists(st.binary(max_size=60)), st.sampled_from([b"Finish: obj=GenerateReqInput(", b'{"event": "request.finished"', b""])
)
def test_any_bytes_can_be_read(lines: list[bytes], begin: bytes) -> None:
    list(LogReader(TEXTS, lambda _: None).read(begin + line for line in lines))


def test_a_line_without_an_end_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unified_tree.controllers.workbench.recorder.request_logs.MAX_LINE_BYTES", 10)
    stream = io.BytesIO(b"one\n" + b"x" * 95 + b"\ntwo\n")
    assert list(lines_of(stream)) == [b"one\n", b"two\n"]
