"""Every command and every reader of a file, with inputs that are nearly right: each is read, or refused in one line.

The seeds are few by default; `make deep` tries many more.
"""

from __future__ import annotations

import gzip
import json
import os
import random
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click import Choice, Option
from inspected_cache import busy_cache, serve
from mutations import VALUES, mutated, spoilt, text_of
from replay_rows import invoke

from unified_tree.components import from_hf_config
from unified_tree.components.models import MODEL_FACTS
from unified_tree.controllers.adapters.sglang.settings import Settings as SglangSettings
from unified_tree.controllers.adapters.vllm.connector_settings import ConnectorSettings
from unified_tree.controllers.cli.diagnosis import diagnosis, read_figures
from unified_tree.controllers.cli.options import OPTIONS
from unified_tree.controllers.cli.size_command import SIZE_OPTIONS
from unified_tree.controllers.doctor import Figures
from unified_tree.controllers.inspector import Inspector
from unified_tree.controllers.inspector.frames import LENGTHS, MAGIC, FrameDecoder, encode
from unified_tree.controllers.inspector.inspector_settings import InspectorSettings
from unified_tree.controllers.inspector.picture import figures_of
from unified_tree.controllers.inspector.recording_page import read_recording, recorded_walk
from unified_tree.controllers.inspector.tree_picture import EVERYTHING, flame, run_details
from unified_tree.controllers.storage.engine_settings import load_settings, section
from unified_tree.controllers.storage.hf3fs.hf3fs_settings import Hf3fsSettings
from unified_tree.controllers.storage.hf3fs.metadata import metadata_service
from unified_tree.controllers.storage.mooncake.mooncake_storage import MooncakeSettings
from unified_tree.controllers.storage.redis.redis_settings import RedisSettings
from unified_tree.controllers.storage.simm.simm_storage import SimmSettings
from unified_tree.controllers.storage_tier.store_settings import StoreSettings
from unified_tree.controllers.workbench.traces.trace import TraceOptions, read_trace
from unified_tree.terms.errors import UnifiedTreeError

SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(3, 200))]
TIMES = 40
ENGINES: dict[str, Any] = {
    "hf3fs": Hf3fsSettings, "mooncake": MooncakeSettings, "redis": RedisSettings, "simm": SimmSettings
}  # fmt: skip

seeds = pytest.mark.parametrize("seed", SEEDS)


def read_or_refused(read: Callable[[], object], what: object) -> bool:
    """Whether it was read; if it was not, it was refused in words, all in one line."""
    try:
        read()
    except UnifiedTreeError:
        return False
    except Exception as error:
        raise AssertionError(f"{type(error).__name__}: {error}: {str(what)[:3000]}") from error
    return True


def run(*arguments: object, codes: tuple[int, ...] = (0, 2)) -> int:
    """A command ends with one of these codes, and with one line if it is 2."""
    result = invoke(*arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise AssertionError(f"{arguments}") from result.exception
    assert result.exit_code in codes, (arguments, result.exit_code, result.output)
    if result.exit_code == 2:
        assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1, (arguments, result.stderr)
    return result.exit_code


# Figures.


def diagnosed(file: Path) -> list[str]:
    return [diagnosis(each) for each in read_figures(str(file))]


@pytest.fixture(scope="module")
def figures() -> Any:
    cache = busy_cache()
    serve(cache, 20, np.random.default_rng(1))
    return json.loads(Figures.of(cache).to_json())


@seeds
def test_figures(seed: int, figures: Any, tmp_path: Path) -> None:
    draw = random.Random(seed)
    file = tmp_path / "figures.json"
    read = 0
    for _ in range(TIMES):
        given = mutated([figures, figures] if draw.random() < 0.3 else figures, draw)
        file.write_bytes(spoilt(text_of(given, draw), draw))
        read += read_or_refused(partial(diagnosed, file), given)
    assert read < TIMES
    run("doctor", file)


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_each_figure_of_a_wrong_type(value: Any, figures: Any, tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    for name in figures:
        file.write_text(json.dumps({**figures, name: value}))
        read_or_refused(partial(diagnosed, file), (name, value))
    for name in figures["pools"][0]:
        pools = [{**figures["pools"][0], name: value}, *figures["pools"][1:]]
        file.write_text(json.dumps({**figures, "pools": pools}))
        read_or_refused(partial(diagnosed, file), (name, value))


# Recordings.


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("recording") / "cache.rec"
    cache = busy_cache(30)
    with Inspector.record(cache, file, figures_every_s=0.0) as inspector:
        serve(cache, 12, np.random.default_rng(1))
        inspector.record_tree()
    return gzip.decompress(file.read_bytes())


def looked_at(file: Path) -> None:
    """All that a page and the doctor make of a recording."""
    picture = read_recording(file)
    told: list[Any] = [picture.state(), picture.events(0), picture.requests(), picture.over_time(), picture.leases]
    told += [picture.over_time(by_namespace=True), picture.over_time_of("shop"), picture.over_time_of(None)]
    if picture.figures:
        told.append(diagnosis(figures_of(picture)))
    if picture.tree is not None:
        told += [flame(picture.tree, EVERYTHING, tier, 1200, 24) for tier in ("device", "host", "both")]
        told += [run_details(picture.tree, run) for run in range(min(picture.tree.run_count, 20))]
        told.append(recorded_walk(picture, {"tokens": list(range(50)), "namespace": "shop", "bigram": False}))
    json.dumps(told)


@seeds
def test_recordings(seed: int, recording: bytes, tmp_path: Path) -> None:
    draw = random.Random(seed)
    frames = [({"kind": f.kind, **f.fields}, f.body) for f in FrameDecoder().feed(recording[len(MAGIC) :])]
    file = tmp_path / "cache.rec"
    read = 0
    for _ in range(TIMES):
        data = b""
        which = draw.randrange(len(frames))
        for i, (told, body) in enumerate(frames):
            if i == which:
                kind = draw.random()
                if kind < 0.6:
                    told = mutated(told, draw)
                elif body:
                    at = draw.randrange(len(body) // 8) * 8
                    word = draw.choice([0, -1, 1, 1 << 62, draw.randrange(1 << 20)]).to_bytes(8, "little", signed=True)
                    body = body[:at] + word + body[at + 8 :] if kind < 0.9 else body[:at]
                elif kind > 0.9:
                    continue
            head = text_of(told, draw) if i == which else json.dumps(told).encode()
            data += LENGTHS.pack(len(head), len(body)) + head + body
        data = gzip.compress(MAGIC + data, 1)
        file.write_bytes(spoilt(data, draw) if draw.random() < 0.2 else data)
        read += read_or_refused(partial(looked_at, file), which)
    assert read < TIMES
    run("doctor", file)


def test_frames_that_come_out_of_turn(recording: bytes, tmp_path: Path) -> None:
    frames = list(FrameDecoder().feed(recording[len(MAGIC) :]))
    file = tmp_path / "cache.rec"
    for seed in range(30):
        draw = random.Random(seed)
        some = draw.sample(frames, draw.randint(1, len(frames)))
        if seed % 2:
            some = [frames[0], *some]
        file.write_bytes(gzip.compress(MAGIC + b"".join(encode(f.kind, f.fields, f.body) for f in some), 1))
        read_or_refused(partial(looked_at, file), [f.kind for f in some])


# Traces.

BLOCKS = [
    {"timestamp": 100 * i, "input_length": 1100 + i, "output_length": 5, "hash_ids": [1, 2, 3 + i]} for i in range(4)
]  # fmt: skip
TURN = {"t": 1.5, "in": 100, "out": 5, "hash_runs": [0, 6]}
SESSIONS = [
    {"block_size": 16, "requests": [TURN, {"t": 2.0, "requests": [TURN]}, {**TURN, "hash_ids": [1, 2]}]},
    {"block_size": 16, "hash_id_scope": "global", "requests": [TURN]},
]


@seeds
@pytest.mark.parametrize("lines", [BLOCKS, SESSIONS], ids=["blocks", "sessions"])
def test_traces(seed: int, lines: list[Any], tmp_path: Path) -> None:
    draw = random.Random(seed)
    file = tmp_path / "trace.jsonl"
    read = 0
    for _ in range(TIMES):
        given = mutated(lines, draw)
        given = given if isinstance(given, list) else [given]
        text = b"\n".join(text_of(line, draw) for line in given) if draw.random() < 0.8 else text_of(given, draw)
        file.write_bytes(spoilt(text, draw))
        options = TraceOptions(block_tokens=draw.choice([None, None, 1, 512]), max_requests=draw.choice([None, 1, 2]))
        read += read_or_refused(partial(read_trace, file, options), given)
    assert read < TIMES
    run("replay", file, "--policy", "lru", "--jobs", 1, "--requests", 4, "--device-gib", 1)


FORMS = sorted((Path(__file__).parents[1] / "unit/workbench/traces/forms").iterdir())


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_traces_of_every_form(form: Path, tmp_path: Path) -> None:
    draw = random.Random(form.name)
    content = form.read_bytes()
    try:
        value = json.loads(content)
        lines = [value]
    except ValueError:
        lines = [json.loads(line) for line in content.splitlines()] if form.suffix == ".jsonl" else []
    file = tmp_path / "trace"
    for _ in range(TIMES):
        if lines and draw.random() < 0.8:
            given = mutated(lines, draw)
            text = b"\n".join(text_of(line, draw) for line in (given if isinstance(given, list) else [given]))
            text = spoilt(text, draw) if draw.random() < 0.2 else text
        else:
            text = spoilt(content, draw)
        file.write_bytes(text)
        options = TraceOptions(
            block_tokens=draw.choice([None, None, 1, 512]),
            max_requests=draw.choice([None, 1, 2]),
            clock_unit=draw.choice([None, None, "s", "ns"]),
            sub_agent_clock=draw.choice([None, "root", "parent"]),
        )
        read_or_refused(partial(read_trace, file, options), text)
    run("replay", file, "--policy", "lru", "--jobs", 1, "--requests", 4, "--device-gib", 1)


# Configurations of models.


@seeds
def test_configurations(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    file = tmp_path / "config.json"
    read = 0
    for _ in range(TIMES):
        given: Any = dict(draw.choice(list(MODEL_FACTS.values())))
        if draw.random() < 0.2:
            given = {"model_type": "gemma3", "text_config": given}
        given = mutated(json.loads(json.dumps(given)), draw)
        file.write_bytes(spoilt(text_of(given, draw), draw) if draw.random() < 0.3 else json.dumps(given).encode())
        options: dict[str, Any] = {"page_size": draw.choice([None, 1, 64]), "tensor_parallel": draw.choice([1, 1, 2])}
        read += read_or_refused(partial(from_hf_config, file, **options), given)
        read_or_refused(partial(from_hf_config, given), given)
    assert read < TIMES
    run("sglang-check", file, "--device-gib", 10, codes=(0, 1, 2))
    run("replay", "--config", file, "--requests", 2, "--policy", "lru", "--jobs", 1)


@pytest.mark.parametrize("model", MODEL_FACTS)
def test_each_field_of_a_configuration_of_a_wrong_type(model: str) -> None:
    given = json.loads(json.dumps(MODEL_FACTS[model]))
    for name in given:
        for value in VALUES:
            read_or_refused(partial(from_hf_config, {**given, name: value}), (model, name, value))


# Settings.

STORES: dict[str, dict[str, Any]] = {
    "mooncake": {"master": "127.0.0.1:50051", "segment_bytes": 1 << 24},
    "redis": {"address": "127.0.0.1:6379", "key_prefix": "ut"},
    "simm": {"manager": "127.0.0.1:30001"},
    "hf3fs": {"mount": "/3fs", "metadata": "http://127.0.0.1:18300", "rank": "0"},
}


YAML = [
    b"redis: 2001-99-99",
    b"redis: &a [*a]",
    b"redis: !!int x",
    b"a: b: c",
    b"- \t-",
    b"redis: {1: 2}",
    b"? [a]\n: b",
    b"redis: !!python/object:os.x {}",
    b"redis: " + b"[" * 3000,
]


@seeds
def test_files_of_settings(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    for _ in range(TIMES):
        given = mutated(STORES, draw)
        file = tmp_path / f"settings{draw.choice(['.json', '.yaml', '.yml', '', '.toml'])}"
        text = text_of(given, draw)
        if draw.random() < 0.2:
            text = draw.choice(YAML)
        file.write_bytes(spoilt(text, draw))
        for engine, kind in ENGINES.items():
            read_or_refused(partial(section, file, engine), given)
            read_or_refused(partial(load_settings, kind, engine, {}, file=file, environment={}), given)


@seeds
def test_variables_of_settings(seed: int) -> None:
    draw = random.Random(seed)
    texts = [str(value) for value in VALUES] + ["true", "0", "1e999", "9" * 5000, "\udcff", "1_0", " 1", "\u0661"]
    for _ in range(TIMES):
        for engine, kind in ENGINES.items():
            names = [field.name for field in fields(kind)]
            given = {f"unified_tree__{engine}__{draw.choice(names)}": draw.choice(texts) for _ in range(draw.randint(1, 3))}
            if draw.random() < 0.1:
                given["UNIFIED_TREE_STORAGE_CONFIG"] = draw.choice(texts)
            read_or_refused(partial(load_settings, kind, engine, STORES[engine], environment=given), given)
            read_or_refused(partial(load_settings, kind, engine, {}, environment=given), given)


@seeds
def test_settings_of_the_adapters(seed: int) -> None:
    draw = random.Random(seed)
    store = {
        "engine": "file",
        "directory": "pages",
        "capacity_bytes": 1 << 20,
        "prefetch": {"mode": "timeout", "min_tokens": 1},
    }
    vllm = {"host_gib": 1.0, "store": store, "inspector": {"port": 0, "host": "127.0.0.1"}, "policy": "lru"}
    sglang = {"policy": "lru", "host": {"gib": 1.0}, "store": store, "inspector": {"port": 0}}
    for _ in range(TIMES):
        for read, base in (
            (lambda given: StoreSettings.of(given).prefetch_policy("timeout"), store),
            (InspectorSettings.of, {"host": "127.0.0.1", "port": 0, "token": None}),
            (ConnectorSettings.of, vllm),
            (SglangSettings.of, sglang),
        ):
            given = mutated(base, draw)
            read_or_refused(partial(read, given), (read, given))


# Options.

TEXTS = [
    *("", " ", "0", "-1", "1e9", "1e400", "nan", "inf", "-inf", "x", "9" * 30, "9" * 5000, "a=b", "full=1,full=2", "full=x"),
    *("full=" + "9" * 30, ":", "::", "a:", ":a", "json:loads", "os:getcwd", "builtins:int", "builtins:object", "sys:exit"),
    *("builtins:print", "builtins:exit", "nothing:here", "\udcff", "true", "\u202e", "../..", "file:", "redis:", "redis:x:y:z"),
    *("memory:a", "mooncake:", "lmcache:", "null:a=b", "learned", "%s", "--", "\n"),
]
SLOW = {"--plot", "--inspect", "--verify-full-bytes", "--check"}


@seeds
@pytest.mark.parametrize(("command", "options"), [("replay", OPTIONS), ("size", SIZE_OPTIONS)], ids=["replay", "size"])
def test_each_option_of_a_wrong_kind(
    command: str, options: list[Option], seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is refused is refused at once; what is not is not run here, but for those that a row is made of."""
    monkeypatch.chdir(tmp_path)
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, BLOCKS)))
    for option in options:
        name = option.opts[0]
        if option.is_flag or name in SLOW or isinstance(option.type, Choice):
            continue
        for text in random.Random(f"{seed} {name}").sample(TEXTS, 4):
            more = ["--host-gib", "1"] if name.startswith(("--host", "--stor", "--pref")) and name != "--host-gib" else []
            more += ["--policy", "lru"] if command == "replay" and name != "--policy" else []
            if name in ("--clients", "--rounds", "--parallel") or name.endswith("-tokens"):
                more += ["--requests", "1"]
            run(command, trace, *more, "--jobs", "1", name, text, codes=(0, 1, 2))


def test_options_of_the_other_commands(tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(MODEL_FACTS["gpt-oss-20b"]))
    for text in TEXTS:
        for name in ("--page-size", "--tp"):
            run("models", name, text)
        for name in ("--device-gib", "--host-gib", "--page-size", "--tp", "--kv-dtype", "--swa-full-tokens-ratio"):
            run("sglang-check", config, name, text, codes=(0, 1, 2))
        run("doctor", config, "--limit", text)
        run("doctor", text)
        run("inspect", text)
        run("inspect", config, "--port", text)
    for address in (
        "http://",
        "http://[",
        "http://[::1",
        "http://127.0.0.1:1/",
        "https://127.0.0.1:99999",
        "http://a b/",
        "http://\0",
    ):
        run("doctor", address)
        run("inspect", address)


@pytest.mark.parametrize("command", ["replay", "size", "doctor", "inspect", "sglang-check", "replay --config"])
def test_files_that_are_none(command: str, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    locked = tmp_path / "locked"
    locked.write_text("{}")
    locked.chmod(0)
    link = tmp_path / "link"
    link.symlink_to(link)
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    names = ["absent", "folder", "pipe", "locked", "link", "empty", "empty/inside", "x" * 300, "\udcff"]
    for path in [*(tmp_path / name for name in names), "/dev/null", "/proc/self/mem", "a\0b"]:
        assert run(*command.split(), path, codes=(2,)) == 2


@pytest.mark.parametrize("option", ["--csv", "--json", "--figures", "--inspect"])
def test_outputs_that_cannot_be_written(option: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, BLOCKS)))
    (tmp_path / "folder").mkdir()
    for path in (*(tmp_path / name for name in ("folder", "absent/rows", "x" * 300)), "/dev/full", "a\0b"):
        assert run("replay", trace, "--policy", "lru", "--jobs", 1, option, path, codes=(2,)) == 2


@seeds
def test_options_of_the_metadata_service(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def served(*_: object) -> None:
        return None

    monkeypatch.setattr(metadata_service, "_serve", served)
    draw = random.Random(seed)
    names = ["--host", "--port", "--lease-s", "--aside-s", "--checkpoint-s", "--log-mib", "--commit-wait-s", "--state"]
    hosts = ["127.0.0.1", "", "\0", "x" * 100, "a..b", "\udcff", "::1", "[::1]", "999.1.1.1"]
    (tmp_path / "file").write_text("x")
    states = [str(tmp_path / "state"), str(tmp_path / "file"), str(tmp_path / "file" / "in"), "", "\0", "/proc/x", "/dev/null"]
    for number in range(12):
        given = ["--state", str(tmp_path / f"state{number}")]
        for name in draw.sample(names, draw.randint(1, 2)):
            texts = hosts if name == "--host" else states if name == "--state" else TEXTS
            given += [f"{name}={draw.choice(texts)}"]
        try:
            code = metadata_service.main(given)
        except SystemExit as error:
            code = int(error.code or 0)
        assert code in (0, 1, 2), given
