"""A small file of every form of traces: known by its content, with the requests, the clock and the hits that its text says."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from replay_rows import row_of

from unified_tree.components import composition_for
from unified_tree.controllers.workbench.runs.plan import Plan
from unified_tree.controllers.workbench.server.server_settings import ServerSettings
from unified_tree.controllers.workbench.traces.trace import FORMATS, TraceOptions, read_trace
from unified_tree.controllers.workbench.traces.workload import Workload
from unified_tree.terms.errors import TraceError

FORMS = Path(__file__).with_name("forms")
PAGE = Path(__file__).parents[4] / "docs" / "traces.md"
DATES = None
"""A span that is drawn: the file has no clock, and its sessions begin at random."""

TABLE = {
    # name: (format, requests, seconds from the first to the last, tokens that hit in a cache of any size)
    "mooncake.jsonl": ("block traces (Mooncake)", 3, 3.5, 2 * 512 + 512),
    "mooncake.jsonl.gz": ("block traces (Mooncake)", 3, 7.0, 2 * 512 + 512),
    "mooncake.jsonl.zst": ("block traces (Mooncake)", 3, 7.0, 2 * 512 + 512),
    "kvcache_simulator.jsonl": ("block traces (Mooncake)", 3, 0.0, 128 + 64),
    "aiperf_mooncake_sessions.jsonl": ("block traces (Mooncake)", 3, 4.0, 512 + 1024),
    "string_hashes.jsonl": ("block traces (Mooncake)", 3, 0.5, 64),  # the third lists them the other way round
    "big_hashes.jsonl": ("block traces (Mooncake)", 3, 0.5, 64 + 32),
    "bailian.jsonl": ("Bailian traces", 3, 121.0, 32 + 16),  # 1, 1 begins as 1 does, and goes on otherwise
    "weka.json": ("kv-cache-tester sessions (Weka, AgentX)", 4, 30.0, 64 + 128 + 128),
    "agentx.jsonl": ("kv-cache-tester sessions (Weka, AgentX)", 4, 30.0, 64 + 128 + 128),
    "kv_cache_tester_packed.jsonl": ("kv-cache-tester sessions (Weka, AgentX)", 3, DATES, 128),
    "dynamo.jsonl": ("Dynamo request traces", 3, 7.5, 32 + 16),
    "burstgpt.csv": ("BurstGPT traces", 3, 113.0, 0),
    "azure.csv": ("Azure LLM inference traces", 3, 10.0, 0),
    "vllm_bench_result.json": ("results of vLLM's and SGLang's benchmarks", 3, 4.0, 0),
    "sglang_bench_result.jsonl": ("results of vLLM's and SGLang's benchmarks", 3, 10.0, 0),
    "lengths.jsonl": ("lengths without hash_ids", 2, 0.75, 0),
    # Texts, a token a byte, in pieces of 16. A system prompt of 56 letters makes 64 bytes, as a question of 58 does; an answer
    # of 37 makes 48 with the word before it. Two prompts that part behind their last question share "assistant", of 10 bytes,
    # and are one piece longer only where it is whole.
    "sharegpt.json": ("conversations (ShareGPT)", 3, DATES, (64 + 48) + 64),
    "vllm_multi_turn.json": ("conversations (ShareGPT)", 2, 0.0, 64 + 48),
    "sglang_custom.jsonl": ("conversations (ShareGPT)", 2, DATES, 64),
    "sglang_agentic.json": ("conversations (ShareGPT)", 2, 0.0, 128),
    "aiperf_multi_turn.jsonl": ("aiperf multi-turn conversations", 2, 3.0, 64 + 32),  # 106 with the answer, in whole pieces
    "spec_bench.jsonl": ("aiperf multi-turn conversations", 2, 0.0, 64),
    "aiperf_single_turn.jsonl": ("aiperf single turns", 3, 2.0, 64 + 64),
    "openai_chat_log.jsonl": ("OpenAI chat logs", 3, 60.5, (128 + 48) + 64),
    "openai_messages.jsonl": ("OpenAI chat logs", 2, DATES, 64),
    "openai_batch.jsonl": ("OpenAI batch files", 3, DATES, 64 + 128),
    "sagemaker.jsonl": ("SageMaker data captures", 2, 12.0, 128 + 48),
    "lmcache_agent.jsonl": ("LMCache agent texts", 3, 4.0, (128 + 48) + (128 + 48 + 32 + 48)),
    "lmcache_agent.parquet": ("LMCache agent texts", 3, 4.0, (128 + 48) + (128 + 48 + 32 + 48)),
    "claude_code.jsonl": ("Claude Code session logs", 2, 6.0, 64 + 112),  # 184 with the answer and its call, in whole pieces
    "vllm_custom.jsonl": ("prompts of vLLM's and SGLang's benchmarks", 4, DATES, 160 + 160),
    "token_ids.jsonl": ("prompts of vLLM's and SGLang's benchmarks", 2, DATES, 32),
    "vllm_kv_events.jsonl": ("KV events of vLLM or SGLang", 3, 25.0, 32),
    "sglang_kv_events.msgpack": ("KV events of vLLM or SGLang", 3, 9.0, 32 + 16),
}


def hits(workload: Workload) -> int:
    """Tokens of all prompts that an earlier prompt, with its answer, begins with; counted naively."""
    known: set[tuple[int, ...]] = {()}
    count = 0
    for request in workload.requests:
        tokens = request.tokens().tolist()
        count += max(end for end in range(request.prompt_tokens + 1) if tuple(tokens[:end]) in known)
        known.update(tuple(tokens[:end]) for end in range(len(tokens) + 1))
    return count


@pytest.mark.parametrize("name", TABLE)
def test_a_form_is_known_by_its_content(name: str, tmp_path: Path) -> None:
    kind, requests, span_s, hit_tokens = TABLE[name]
    file = tmp_path / "trace"
    shutil.copy(FORMS / name, file)
    workload = read_trace(file)
    assert workload.notes[0].startswith(f"read as {kind};")
    assert len(workload.requests) == requests
    assert span_s is None or workload.requests[-1].arrival_s == pytest.approx(span_s)
    assert hits(workload) == hit_tokens
    composition = composition_for("qwen3-32b", page_size=16)
    plan = Plan(workload=workload, composition=composition, device_bytes=1 << 33, settings=ServerSettings())
    assert row_of(plan).hit_tokens == hit_tokens, "in the real cache"


def test_there_is_a_file_of_every_form_and_a_line_on_the_page() -> None:
    assert {path.name for path in FORMS.iterdir()} == TABLE.keys()
    assert {kind for kind, *_ in TABLE.values()} == {each.name for each in FORMATS}
    page = PAGE.read_text()
    for each in FORMATS:
        assert each.name in page, each.name


def test_what_lengths_alone_cannot_answer_is_said() -> None:
    for name in ("azure.csv", "burstgpt.csv", "vllm_bench_result.json", "lengths.jsonl"):
        assert any("cannot say what a cache brings" in note for note in read_trace(FORMS / name).notes), name


def test_a_directory_of_many_files_is_one_trace(tmp_path: Path) -> None:
    (tmp_path / "2026" / "11").mkdir(parents=True)
    lines = (FORMS / "sagemaker.jsonl").read_text().splitlines()
    (tmp_path / "2026" / "11" / "a.jsonl").write_text(lines[1])
    (tmp_path / "2026" / "b.jsonl").write_text(lines[0])
    (tmp_path / "README.md").write_text("no trace")
    assert hits(read_trace(tmp_path)) == 176


def tokenizer(tmp_path: Path) -> Path:
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0, "a": 1, "b": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    return tmp_path / "tokenizer.json"


def test_texts_are_cut_by_the_tokenizer_that_is_named(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": "a " * 20 + end}) + "\n" for end in ("a a", "b")))
    by_bytes, by_words = read_trace(file), read_trace(file, TraceOptions(tokenizer=tokenizer(tmp_path)))
    assert [request.prompt_tokens for request in by_bytes.requests] == [43, 41]
    assert [request.prompt_tokens for request in by_words.requests] == [22, 21]
    assert (hits(by_bytes), hits(by_words)) == (32, 16)
    assert any(note.startswith("warning: a token is a byte") for note in by_bytes.notes)
    assert not any("a token is a byte" in note for note in read_trace(FORMS / "token_ids.jsonl").notes)
    assert "a tokenizer of 3 tokens; the model's chat template is not applied" in by_words.notes


def test_a_tokenizer_that_is_none_is_named(tmp_path: Path) -> None:
    for content, says in ((None, "cannot be read"), (b"{}", "is no tokenizer.json"), (b"\xff", "is no tokenizer.json")):
        file = tmp_path / "tokenizer.json"
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(TraceError, match=rf"tokenizer\.json: {says}"):
            read_trace(FORMS / "sharegpt.json", TraceOptions(tokenizer=file))


@pytest.mark.parametrize(
    ("name", "modules", "says"),
    [
        ("mooncake.jsonl.zst", ("compression.zstd", "backports.zstd"), "is compressed by zstd, which needs backports.zstd"),
        ("lmcache_agent.parquet", ("pyarrow", "pyarrow.parquet"), "is a Parquet file, which needs pyarrow"),
        ("sglang_kv_events.msgpack", ("msgpack",), "is in MessagePack, which needs msgpack"),
    ],
)
def test_a_package_that_is_missing_is_named(
    name: str, modules: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in modules:
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(TraceError, match=re.escape(f"{name}: {says}; run: pip install 'unified-tree[traces]'")):
        read_trace(FORMS / name)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"PK\x03\x04" + bytes(20), ": is a zip archive: unpack it"),
        (b"\x80\x04\x95" + bytes(20), ": is a Python pickle, which is not opened because it may run any code"),
        (b"a,b\n1,2\n", ':2: the row, read as CSV, has no field of any trace (docs/traces.md lists the formats); it has: ["a"'),
        (b"Hello, world.\nThis is, well, text.\n", ":2: the row, read as CSV, has no field of any trace"),
        (b"1,20,30\n2,20,30\n", ":1: is CSV without a heading: its first line must name the columns"),
        (b"timestamp,input_length\r0,5\r1,5\r", ":1: is no CSV: its lines end in carriage returns alone"),
        ('{"input_length": 5}\n'.encode("utf-16"), ": is text in UTF-16 or UTF-32, or binary: save it in UTF-8"),
        ('{"input_length": 5}\n'.encode("utf-16-le"), ": is text in UTF-16 or UTF-32, or binary: save it in UTF-8"),
        ("timestamp,input_length\n0,5\n".encode("utf-32"), ": is text in UTF-16 or UTF-32, or binary: save it in UTF-8"),
        (b"hello\n", ":1: is no trace: neither JSON nor CSV with a heading"),
        (b"[1, 2\n", ":1: the line is no JSON object: 1"),
        (b'[{"timestamp": 1},\n {"timestamp": 2}}', ":2: is not JSON: a comma is missing"),
        (b'[{"prompt": "a"}\n,{"prompt": "b"}', ":2: is not JSON: the array has no end"),
        (b'[\n{"prompt": "a"}\n] x', ":3: is not JSON: something follows the array"),
        (b'{\n"prompt": "\xff"\n}', ":1: is not JSON: it is not UTF-8"),
        (b'{"events": [["BlockStored", [1], null, [], 16], ["BlockMoved"]]}', ":1: events[1] is none of BlockStored"),
        (b'{"input_length": 5, "wheels": 4}\n', "nearest is block traces (Mooncake), without hash_ids; it has: "),
        (b'{"timestamp": 3, "input_length": 5, "hash_id": [1]}', "nearest is block traces (Mooncake), without hash_ids (but "),
        (
            b'{"input_length": 5, "output_length": 1, "HASH_IDS": [1]}',
            "(Mooncake), without hash_ids (but with HASH_IDS); it has",
        ),
        (
            b'{"input_length": 5, "output_length": 1, "block_hashes": [1]}',
            "nearest is block traces (Mooncake), without hash_ids;",
        ),
        (b"TIMESTAMP,context_tokens,GeneratedTokens\n0,5,5\n", "Azure LLM inference traces, without ContextTokens (but with c"),
        (
            b"id,prompt_tokens,completion_tokens,arrived_at\n1,20,3,0.5\n",
            "nearest is lengths without hash_ids (timestamp in milliseconds): rename prompt_tokens to input_length, "
            "completion_tokens to output_length, arrived_at to timestamp; it has: ",
        ),
        (b"num_prefill_tokens;num_decode_tokens\n20;3\n", "rename num_prefill_tokens to input_length, num_decode_tokens to "),
        (b'{"messages": "x"}', "is nearly of the format OpenAI chat logs, but messages hold something else; it has: "),
        (b'{"id": 1, "request": [2]}', "nearest is "),
        (
            b'{"prompt": "a"}\n{"prompt": "b',
            ":2: is not JSON: Unterminated string starting at column 12; the file ends within this ",
        ),
        (
            b'{"prompt": "a"}\n{"note": 1}\n',
            ":2: the line has no prompt (messages, prompt, text, token ids), unlike the trace's f",
        ),
        (b"\x92\x01", ":1: ends within an object"),
        (b"PAR1" + bytes(30), ": is no Parquet file that can be read"),
    ],
)
def test_what_is_no_trace_is_told_in_a_line(content: bytes, says: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    with pytest.raises(TraceError) as error:
        read_trace(file)
    assert says in str(error.value)
    assert str(error.value).startswith(f"{file}")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("mark", [",", ";", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("begin", ["", "\ufeff", "\n\n"])
def test_a_table_may_be_separated_by_other_marks(mark: str, end: str, begin: str, tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    rows = [("timestamp", "input_length", "output_length"), ("0", "50", "3"), ("250", "70", "4")]
    file.write_text(begin + "".join(mark.join(row) + end for row in rows), newline="")
    workload = read_trace(file)
    assert [(each.arrival_s, each.prompt_tokens, each.output_tokens) for each in workload.requests] == [
        (0, 50, 3),
        (0.25, 70, 4),
    ]


def test_lengths_may_have_other_lists_beside_them(tmp_path: Path) -> None:
    file = tmp_path / "lengths.jsonl"
    file.write_text('{"input_length": 5, "output_length": 1, "tags": ["a"]}\n')
    assert not read_trace(file).tells_sharing


def test_an_array_larger_than_a_piece_is_read_piece_by_piece(tmp_path: Path) -> None:
    rows = [{"timestamp": i, "input_length": 64, "output_length": 1, "hash_ids": [i], "x": "\u00e9" * 900} for i in range(2000)]
    file = tmp_path / "array.json.gz"
    file.write_bytes(gzip.compress(json.dumps(rows, indent=1, ensure_ascii=False).encode(), 1))
    assert len(read_trace(file).requests) == 2000
    file.write_bytes(
        gzip.compress(json.dumps(rows, indent=1).encode().replace(b'"input_length": 64', b'"input_length": x', 1999))
    )
    with pytest.raises(TraceError, match=r"array\.json\.gz:4: is not JSON"):
        read_trace(file)


def test_long_texts_count_answers_as_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unified_tree.controllers.workbench.traces.text_requests.MOST_SINGLE_TOKENS", 10)
    workload = read_trace(FORMS / "sharegpt.json")
    assert {request.block_tokens for request in workload.requests} == {16}
    assert hits(workload) == 64 + 64
    assert any(note.startswith("answers count as computed again") for note in workload.notes)


def log(*calls: dict[str, Any]) -> str:
    return "".join(json.dumps(call) + "\n" for call in calls)


def test_what_a_chat_log_may_hold_beside_texts(tmp_path: Path) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5000}}
    call = {"id": "c", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    body = {"tools": [{"type": "function", "function": {"name": "read"}}], "instructions": "Be brief."}
    ask = [{"role": "user", "content": [{"type": "text", "text": "See " * 20}, image]}]
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    first = {"request": {**body, "messages": ask}, "response": {"created": 1764363600, "choices": [{"message": answer}]}}
    again = {"request": {**body, "messages": [*ask, answer, {"role": "tool", "content": "found"}]}, "created": 1764363605}
    file = tmp_path / "log.jsonl"
    file.write_text(log(first, again))
    workload = read_trace(file)
    assert [request.arrival_s for request in workload.requests] == [0.0, 5.0]
    one, two = workload.requests
    assert one.prompt_tokens < 400, "an image is a digest"
    assert hits(workload) == (one.prompt_tokens + one.output_tokens) // 16 * 16
    assert two.prompt_tokens > hits(workload)


ASK = {"role": "user", "content": "See " * 20}
ANSWER = {"role": "assistant", "content": "Seen."}


@pytest.mark.parametrize(
    "name", ["timestamp", "@timestamp", "startTime", "arrival_time", "requestTimestamp", "created_at", "ts"]
)
def test_the_time_of_a_call_may_have_other_names(name: str, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text(log(*({name: 1764363600 + at, "messages": [ASK]} for at in (0, 5))))
    workload = read_trace(file)
    assert [request.arrival_s for request in workload.requests] == [0.0, 5.0]
    assert f"{name} is taken as seconds, as OpenAI chat logs have it; --clock-unit overrides" in workload.notes


CHOICES = [{"message": ANSWER}]


@pytest.mark.parametrize(
    "call",
    [
        {"inputs": {"messages": [ASK]}, "outputs": ANSWER, "start_time": "2026-11-28T21:00:00"},
        {"request_body": {"messages": [ASK]}, "response_body": {"choices": CHOICES}, "request_created_at": 1764363600},
        {"input": [ASK], "output": ANSWER, "startTime": "2026-11-28T21:00:00Z"},
        {"input": [ASK], "choices": CHOICES, "created": 1764363600},
    ],
)
def test_prompt_and_answer_of_other_logs(call: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text(log(call))
    workload = read_trace(file)
    assert not any("no clock" in note for note in workload.notes)
    (request,) = workload.requests
    assert request.prompt_tokens > len(ASK["content"])
    assert request.output_tokens == len("Seen.") + 1


def test_messages_that_end_with_an_answer_and_have_a_time_are_a_call(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    turns = [ASK, ANSWER]
    file.write_text(log(*({"timestamp": 60 * count, "messages": turns * count} for count in (1, 2, 3))))
    workload = read_trace(file)
    assert workload.notes[0].startswith("read as OpenAI chat logs;")
    assert [request.arrival_s for request in workload.requests] == [0.0, 60.0, 120.0], "one a line"
    assert all(request.output_tokens == len("Seen.") + 1 for request in workload.requests)


def test_conversations_begin_when_they_say(tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_text(log(*({"created": 1764363600 + at, "conversations": [ASK, ANSWER] * 2} for at in (0, 90))))
    workload = read_trace(file)
    assert [request.arrival_s for request in workload.requests] == [0.0, 0.0, 90.0, 90.0]
    assert not any("no clock" in note for note in workload.notes)
    file.write_text(log({"created": 1764363600, "conversations": [ASK, ANSWER]}, {"conversations": [ASK, ANSWER]}))
    with pytest.raises(TraceError, match="timestamp is missing, but a record before has a time"):
        read_trace(file)


@pytest.mark.parametrize("opener", [open, gzip.open])
def test_the_bytes_that_were_read_are_told_as_they_are(tmp_path: Path, opener: type) -> None:
    path = tmp_path / "trace.jsonl"
    lines = [{"timestamp": i, "input_length": 900, "output_length": 9, "hash_ids": [i, i + 1]} for i in range(20_000)]
    with opener(path, "wb") as file:
        file.write("\n".join(map(json.dumps, lines)).encode())
    told: list[int] = []
    workload = read_trace(path, None, told.append)
    assert len(workload.requests) == len(lines)
    assert len(told) > 20
    assert min(told) >= 0
    assert 0.9 * path.stat().st_size <= sum(told) <= path.stat().st_size
