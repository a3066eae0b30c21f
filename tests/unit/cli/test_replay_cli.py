"""The command line: what it writes, and that bad input ends in one line and exit code 2."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from replay_rows import invoke as run
from replay_rows import rows_of

from unified_tree.controllers import Lease
from unified_tree.controllers.cli import commands
from unified_tree.controllers.workbench.runs.row import run_rows
from unified_tree.controllers.workbench.runs.row_result import RowResult
from unified_tree.controllers.workbench.server.verified_pages import VerifiedPages
from unified_tree.policies.table import POLICIES

FIELDS = {
    "policy",
    "requests",
    "rejected",
    "prompt_tokens",
    "hit_tokens",
    "hit_tokens_device",
    "hit_tokens_host",
    "hit_tokens_storage",
    "recomputed_tokens",
    "evictions",
    "us_per_request_mean",
    "us_per_request_p50",
    "us_per_request_p99",
}
SMALL = ["replay", "--requests", "60", "--device-gib", "1", "--jobs", "1", "--certify"]


def test_a_small_replay_writes_table_csv_json_and_plot(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("rows.csv", "rows.json", "rows.png")]
    result = run(*SMALL, "--policy", "lru,cost", "--csv", files[0], "--json", files[1], "--plot", files[2])
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    rows = json.loads(files[1].read_text())
    names = ["lru", "cost", "clairvoyant"]
    assert [row["policy"] for row in rows] == [*names, "unbounded", *(f"path-only {name}" for name in names)]
    by_name = {row["policy"]: row for row in rows}
    for name in names:
        row, twin = by_name[name], by_name[f"path-only {name}"]
        assert row["path_only_hit_rate"] == twin["hit_rate"], "of the same policy"
        assert twin["total_pages.full"] > row["total_pages.full"], "of the whole budget"
        assert row["hit_tokens"] <= row["optimum_low_tokens"] <= row["optimum_high_tokens"] <= row["ceiling_tokens"]
        assert row["optimum_high_tokens"] == by_name["lru"]["optimum_high_tokens"], "one interval for rows of the same pools"
    assert by_name["unbounded"]["path_only_hit_rate"] is None
    for row in rows:
        assert row.keys() >= FIELDS
        assert row["policy"] in result.stdout or row["policy"].startswith("path-only")
        assert row["hit_tokens"] + row["recomputed_tokens"] + row["rejected_tokens"] == row["prompt_tokens"]
        assert row["hit_tokens"] == row["hit_tokens_device"] + row["hit_tokens_host"] + row["hit_tokens_storage"]
        assert row["requests"] == 60
        assert row["us_per_request_p50"] <= row["us_per_request_p99"]
    with files[0].open(newline="") as stream:
        table = list(csv.DictReader(stream))
    assert [row["policy"] for row in table] == [row["policy"] for row in rows]
    assert int(table[0]["hit_tokens"]) == rows[0]["hit_tokens"]
    assert files[2].read_bytes().startswith(b"\x89PNG")


def test_names_are_printed_as_they_are_and_turns_are_told_apart_only_where_a_trace_tells(tmp_path: Path) -> None:
    trace, out = tmp_path / "a [bold]trace] [red] :smile:.jsonl", tmp_path / "rows.json"
    lines = [{"timestamp": i * 1000, "input_length": 900, "output_length": 9, "hash_ids": [1, i]} for i in range(4)]
    trace.write_text("\n".join(map(json.dumps, lines)))
    options = ["--policy", "lru", "--prefill-tflops", 40, "--host-gib", 1, "--storage", f"file:{tmp_path}/[dim]s"]
    result = run("replay", trace, "--device-gib", 1, "--jobs", 1, *options, "--json", out)
    assert result.exit_code == 0, result.output
    assert f"{trace.name}: 4 requests" in result.stdout
    assert "[dim]s" in result.stdout
    for row in json.loads(out.read_text()):
        assert row["modelled_ttft_s_mean"] > 0
        assert row["modelled_ttft_s_first_turns"] is row["modelled_ttft_s_later_turns"] is None


HOST_FIELDS = {"hit_rate_device", "hit_rate_host", "backed_up_gib", "loaded_gib", "drops", "total_host_pages.swa"}


def test_recency_and_the_default_are_compared_and_bounded(tmp_path: Path) -> None:
    row, default = rows_of(tmp_path / "rows.json", *SMALL[:-1]).values()
    assert (row["policy"], default["policy"]) == ("lru", "density")
    for each in (row, default):
        assert each["hit_tokens"] <= each["optimum_low_tokens"] <= each["optimum_high_tokens"] <= each["ceiling_tokens"]
    exact = rows_of(tmp_path / "exact.json", *SMALL)["lru"]
    assert exact["optimum_low_tokens"] >= row["optimum_low_tokens"]
    assert exact["optimum_high_tokens"] <= row["optimum_high_tokens"], "to certify never widens the interval"


def test_advice_can_be_left_out() -> None:
    small = ["replay", "--requests", "60", "--device-gib", "1", "--jobs", "1", "--policy", "lru"]
    assert "about" in run(*small).stdout.split("\n\n")[0]
    assert "about" not in run(*small, "--no-advice").stdout.split("\n\n")[0]


def test_all_policies_have_a_name(tmp_path: Path) -> None:
    assert list(rows_of(tmp_path / "rows.json", *SMALL[:-1], "--policy", "all")) == list(POLICIES)


def test_without_the_options_of_a_tier_there_is_nothing_of_it(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    result = run(*SMALL, "--policy", "lru", "--json", out)
    assert "host" not in result.stdout.partition("\n\n")[2], "but for what the answers weigh"
    for row in json.loads(out.read_text()):
        assert not row.keys() & (HOST_FIELDS | {"wrong_bytes"})
        assert (row["hit_tokens_device"], row["hit_tokens_host"]) == (row["hit_tokens"], 0)


def test_a_host_tier_shows_hits_by_tier_and_what_was_moved(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("rows.csv", "rows.json", "rows.png")]
    result = run(
        *SMALL, "--device-gib", 0.9, "--policy", "lru", "--host-gib", 16, "--host-pages", "swa=300",
        "--write-policy", "write-back", "--host-gb-per-s", 50, "--csv", files[0], "--json", files[1], "--plot", files[2],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    for word in ("host: 16 GiB, write-back", "50 GB/s", "Where did hits come from", "swa on host"):
        assert word in result.stdout
    rows = {row["policy"]: row for row in json.loads(files[1].read_text())}
    assert not rows.pop("unbounded").keys() & HOST_FIELDS
    for row in rows.values():
        assert row.keys() >= HOST_FIELDS
        assert row["hit_tokens"] == row["hit_tokens_device"] + row["hit_tokens_host"]
        assert row["hit_rate"] == pytest.approx(row["hit_rate_device"] + row["hit_rate_host"])
        assert row["drops"] == sum(count for name, count in row.items() if name.startswith("drops."))
    assert rows["lru"]["total_host_pages.swa"] == 300
    assert rows["path-only lru"]["total_host_pages.swa"] is None
    assert rows["lru"]["hit_tokens_host"] > 0
    assert rows["lru"]["loaded_gib"] > 0
    with files[0].open(newline="") as stream:
        assert next(csv.DictReader(stream)).keys() >= HOST_FIELDS
    assert files[2].read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("host", [[], ["--host-gib", 16]])
def test_verify_compares_bytes_in_every_row(host: list[object], tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    result = run(*SMALL, "--policy", "lru", "--verify", *host, "--json", out)
    assert result.exit_code == 0, result.output
    assert "Is every byte right?" in result.stdout
    for row in json.loads(out.read_text()):
        assert row["checked_bytes"] > 0 == row["wrong_bytes"]


def test_wrong_bytes_are_exit_code_1(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, original = tmp_path / "rows.json", VerifiedPages.ran

    def sloppy(self: VerifiedPages, lease: Lease, computed_tokens: int) -> None:
        original(self, lease, computed_tokens)
        if computed_tokens > 4000 and lease.key.length % 3 == 0:
            page = lease.pages("full")[:1]
            self.stores["full"].write(page, self.stores["full"].read(page) ^ np.uint8(1))

    monkeypatch.setattr(VerifiedPages, "ran", sloppy)
    result = run(*SMALL, "--policy", "lru", "--verify", "--json", out)
    assert result.exit_code == 1
    assert "were not what had been computed" in result.stderr
    assert sum(row["wrong_bytes"] for row in json.loads(out.read_text())) > 0


def run_without(package: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process that lacks a package."""
    program = (
        f"import sys\nsys.modules[{package!r}] = None\nsys.argv[1:] = {list(arguments)}\n"
        "from unified_tree.controllers.cli.cli import main\nmain()\n"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)


def test_only_verify_with_a_host_needs_torch_and_says_so() -> None:
    small = ("replay", "--requests", "5", "--verify", "--policy", "lru", "--jobs", "1")
    assert run_without("torch", *small).returncode == 0
    refused = run_without("torch", *small, "--host-gib", "9")
    assert refused.returncode == 2
    assert refused.stderr.endswith("needs torch; run: pip install 'unified-tree[tensors]'\n")


def test_a_trace_and_a_config_file(tmp_path: Path) -> None:
    trace, config, out = tmp_path / "trace", tmp_path / "config.json", tmp_path / "rows.json"
    line = {"timestamp": 0, "input_length": 1200, "output_length": 3, "hash_ids": [0, 1, 2]}
    trace.write_text("".join(json.dumps(line | {"timestamp": 1000 * i}) + "\n" for i in range(4)))
    config.write_text(
        json.dumps(
            {
                "model_type": "llama",
                "hidden_size": 256,
                "intermediate_size": 512,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "vocab_size": 1000,
            }
        )
    )
    result = run("replay", trace, "--config", config, "--device-gib", 0.1, "--policy", "lru", "--jobs", 1, "--json", out)
    assert result.exit_code == 0, result.output
    for row in json.loads(out.read_text()):
        assert (row["requests"], row["hit_tokens"], row["prompt_tokens"]) == (4, 3 * 1024, 4 * 1200)


HOST = ["replay", "--requests", "40", "--device-gib", "1", "--host-gib", "2"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["replay", "/nowhere/trace.jsonl"], "/nowhere/trace.jsonl: cannot be read"),
        (["replay", "--model", "gpt-17"], "gpt-17"),
        (["replay", "--config", "/nowhere/config.json"], "/nowhere/config.json"),
        (["replay", "--config", "x", "--model", "gpt-oss-20b"], "not both"),
        (["replay", "--policy", "random"], "unknown eviction policy 'random'"),
        (["replay", "--device-gib", "0"], "--device-gib"),
        (["replay", "--host-gib", "0"], "--host-gib"),
        (["replay", "--host-gib", "nan"], "--host-gib"),
        (["replay", "--host-gib", "1e-9"], "cannot hold"),
        (["replay", "--host-gib", "9", "--host-pages", "full"], "--host-pages"),
        (["replay", "--host-gib", "9", "--host-pages", "nothing=5"], "nothing"),
        (["replay", "--host-gib", "9", "--host-pages", "swa=1"], "swa: a boundary"),
        (["replay", "--host-gib", "9", "--host-gb-per-s", "0"], "--host-gb-per-s"),
        (["replay", "--host-gib", "9", "--write-policy", "write-never"], "write-never"),
        (["replay", "--host-pages", "full=500"], "--host-pages needs a host tier"),
        (["replay", "--host-gb-per-s", "9"], "--host-gb-per-s needs a host tier"),
        (["replay", "--write-policy", "write-back"], "--write-policy needs a host tier"),
        (["replay", "--verify-full-bytes", "--device-gib", "900000"], "are available"),
        (["replay", "--device-gib", "nan"], "--device-gib"),
        (["replay", "--device-gib", "1e30"], "--device-gib"),
        (["replay", "--pages", "full=99999999999999"], "--pages"),
        (["replay", "--device-gib", "1e-9"], "cannot hold"),
        (["replay", "--device-gib", "much"], "--device-gib"),
        (["replay", "--page-size", "0"], "page_size"),
        (["replay", "--page-size", "-64"], "page_size"),
        (["replay", "--pages", "full"], "--pages"),
        (["replay", "--pages", "full=0"], "full"),
        (["replay", "--pages", "nothing=5"], "nothing"),
        (["replay", "--storage", "memory"], "--storage needs a host tier"),
        (["replay", "--storage-gib", "5"], "--storage-gib needs a store"),
        (["replay", "--prefetch", "timeout"], "--prefetch needs a store"),
        ([*HOST, "--storage", "nowhere"], "engine is called 'nowhere'"),
        ([*HOST, "--storage", "file"], "file:DIR"),
        ([*HOST, "--storage", "redis"], "redis:HOST:PORT"),
        ([*HOST, "--storage", "redis:here"], "address must be host:port"),
        ([*HOST, "--storage", "redis:127.0.0.1:1"], "127.0.0.1:1"),
        ([*HOST, "--storage", "memory", "--storage-gib", "-1"], "--storage-gib"),
        ([*HOST, "--storage", "memory", "--storage-gib", "nan"], "--storage-gib"),
        ([*HOST, "--storage", "redis:127.0.0.1:1", "--storage-gib", "5"], "its own business"),
        ([*HOST, "--storage", "memory", "--storage-gib", "0.001"], "budget"),
        ([*HOST, "--storage", "memory", "--storage-gb-per-s", "0"], "--storage-gb-per-s"),
        ([*HOST, "--storage", "memory", "--storage-latency-us", "-1"], "--storage-latency-us"),
        ([*HOST, "--storage", "null:a"], "a=b,c=d"),
        ([*HOST, "--storage", "file:/proc/nothing"], "/proc/nothing"),
        (["replay", "--clients", "3"], "replay multiturn"),
        (["replay", "multiturn", "--clients", "0"], "Invalid value for '--clients'"),
        (["replay", "multiturn", "--answer-tokens", "-5"], "Invalid value for '--answer-tokens'"),
        (["replay", "--prefill-tflops", "0"], "--prefill-tflops"),
        (["replay", "--prefill-tflops", "nan"], "--prefill-tflops"),
        (["replay", "--prefill-tflops", "1e-30"], "Invalid value for '--prefill-tflops'"),
        (["size", "--sample", "0"], "--sample"),
        (["size", "--device-gib", "0.001"], "cannot hold"),
        (["size", "--plot", "a.txt"], "a.txt"),
        (["size", "--model", "none"], "none"),
        (["replay", "--concurrency", "0"], "concurrency"),
        (["replay", "--chunk-tokens", "-1"], "chunk_tokens"),
        (["replay", "--step-ms", "0"], "step_ms"),
        (["replay", "--time-scale", "-1"], "time_scale"),
        (["replay", "--requests", "0"], "--requests"),
        (["replay", "--seed", "-1"], "--seed"),
        (["replay", "--jobs", "0"], "--jobs"),
        (["replay", "--tp", "0"], "tensor_parallel"),
        (["replay", "--csv", "/nowhere/at/all.csv"], "/nowhere/at/all.csv"),
        (["replay", "--plot", "rows.docx"], "rows.docx"),
        (["replay", "--colour"], "--colour"),
        (["replay", "one", "two"], "two"),
        (["reply"], "reply"),
        (["models", "--tp", "0"], "tensor_parallel"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments: list[str], says: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith("error: ")
    assert says in result.stderr
    assert not result.stdout


@pytest.fixture
def replayed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second replay of a test and all after it have the rows of the first."""
    rows: list[RowResult] = []

    def known_rows(*given: Any) -> list[RowResult]:
        rows.extend(() if rows else run_rows(*given))
        return list(rows)

    monkeypatch.setattr(commands, "run_rows", known_rows)


@pytest.mark.usefixtures("replayed_once")
def test_nothing_is_cut_at_any_width(monkeypatch: pytest.MonkeyPatch) -> None:
    for width in (60, 80, 120, 200):
        monkeypatch.setenv("COLUMNS", str(width))
        check_nothing_is_cut(width)


def check_nothing_is_cut(width: int) -> None:
    result = run(*SMALL, "--policy", "lru", "--host-gib", 2, "--storage", "memory", "--prefill-tflops", 200, "--verify")
    assert result.exit_code == 0, result.output
    assert not result.stderr, "no bar and no newline without a terminal"
    assert max(map(len, result.stdout.splitlines())) <= width
    assert "…" not in result.stdout
    words = " ".join(result.stdout.split())
    for heading in (
        "hit %",
        "computed tokens",
        "tombstones",
        "preemptions",
        "clairvoyant",
        "storage",
        "boundaries",
        "compared",
    ):
        assert heading in words
    assert "Short of pages, values were evicted: full (lru, " in words


def test_every_column_of_a_file_is_explained(tmp_path: Path) -> None:
    out = tmp_path / "rows.json"
    given = ["--policy", "lru", "--host-gib", 2, "--storage", "memory", "--prefill-tflops", 200, "--verify"]
    assert run(*SMALL, *given, "--json", out).exit_code == 0
    explained = set(run("columns").stdout.split())
    for name in json.loads(out.read_text())[0].keys() - {"policy"}:
        assert (name if "." not in name else name.partition(".")[0] + ".<name>") in explained, name


def test_the_answers_come_first_and_no_heading_is_broken() -> None:
    said = run(*SMALL, "--policy", "lru").stdout
    first, lines = " ".join(said.partition("\n\n")[0].split()), said.splitlines()
    pattern = (
        r"[\d.]+ % of the \S+ prompt tokens hit with lru.*\. The best possible with this memory .*\. "
        r"(More hits than with |No policy)"
    )
    assert re.match(pattern, first), first
    assert any(re.fullmatch(r"policy +hit % +served % +best possible % +ceiling % +path-only % *", line) for line in lines)


def test_html_writes_one_page(tmp_path: Path) -> None:
    out = tmp_path / "a <b> report.html"
    result = run("replay", "--requests", 30, "--device-gib", 1, "--jobs", 1, "--policy", "lru", "--html", out)
    assert result.exit_code == 0, result.output
    text = out.read_text()
    assert text.startswith("<!doctype html>")
    assert text.count("<figure") >= 6
    first = " ".join(result.stdout.split("\n\n")[0].split())
    assert all(sentence in first for sentence in re.findall(r'<p class="answer">([^<]+)</p>', text))


def words_of(group: click.Group) -> Iterator[list[str]]:
    """The words that name a command of a group or of one within, each command."""
    context = click.Context(group)
    for name in group.list_commands(context):
        yield [name]
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from ([name, *words] for words in words_of(command))


def test_alone_it_says_in_ten_lines_what_it_can_do() -> None:
    result = run()
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert len(lines) <= 10
    assert all(len(line) <= 80 for line in lines)
    assert sum(line.startswith("  unified-tree ") for line in lines) == 3


@pytest.mark.parametrize("words", sorted(words_of(commands.app)), ids=" ".join)
def test_every_help_fits_a_screen(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run(*words, "--help").stdout.splitlines()
    assert len(lines) < 40
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("command", ["replay", "size"])
def test_help_names_the_common_options_and_help_all_every_one(command: str) -> None:
    common, whole = (run(command, flag) for flag in ("--help", "--help-all"))
    assert common.exit_code == whole.exit_code == 0
    assert f"unified-tree {command} --help-all" in common.stdout or f"{command} --help-all" in common.stdout
    of_app = commands.app.get_command(click.Context(commands.app), command)
    assert of_app is not None
    for option in of_app.params:
        name = option.opts[0]
        assert not name.startswith("--") or name in ("--help-all",) or name in whole.stdout
    assert "--device-gib" in common.stdout
    assert "--chunk-tokens" not in common.stdout
    assert "--chunk-tokens" in whole.stdout


def test_help_groups_the_options() -> None:
    result = run("replay", "--help-all")
    for group in ("Model:", "Device memory:", "Host memory:", "Storage:", "Server:", "Workload:", "Verification:", "Output:"):
        assert f"\n{group}\n" in result.stdout
    assert "`tensors`" in result.stdout


def test_a_bad_line_of_a_trace_is_named_by_the_real_command(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": []}\n{"timestamp": 0}\n')
    command = [sys.executable, "-m", "unified_tree.controllers.cli.cli", "replay", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f'error: {path}:2: input_length is missing; the object has the fields: ["timestamp"]\n'
    assert not done.stdout


def test_the_driver_needs_neither_torch_nor_click_nor_rich() -> None:
    program = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('torch', 'click', 'rich', 'matplotlib')))\n"
        "import unified_tree.controllers.workbench.runs.row, unified_tree.controllers.workbench.traces.trace\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_missing_extra_is_one_line() -> None:
    done = run_without("click")
    assert done.returncode == 2
    assert done.stderr == "error: click is not installed; run: pip install 'unified-tree[replay]'\n"


def test_models_lists_every_component() -> None:
    result = run("models")
    assert result.exit_code == 0, result.output
    for word in ("gpt-oss-20b", "deepseek-v4-flash", "llama-3.1-8b", "swa", "mamba", "indexer", "kept in"):
        assert word in result.stdout
