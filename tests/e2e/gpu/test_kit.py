"""The parts of the kit that need neither an engine nor a GPU."""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> object:
    """Imports a program of the kit or of SGLang's mixes by its name."""
    monkeypatch.setattr(sys, "path", [str(HERE), str(HERE.parent / "sglang"), *sys.path])

    def imported(name: str) -> ModuleType:
        return importlib.import_module(name)

    return imported


def test_an_undecided_token_is_no_wrong_one(module: object) -> None:
    is_tie = module("run_mixes").is_tie  # type: ignore[operator]
    wanted = {"output": [1, 2, 3, 4], "margins": [2.0, 1e-5, 2.0, 2.0]}
    assert is_tie([1, 9, 9, 9], wanted)
    assert not is_tie([9, 2, 3, 4], wanted), "the first token was decided"
    assert not is_tie([1, 2, 9, 4], wanted)
    assert not is_tie([1, 2, 3, 4], wanted)
    assert not is_tie([1, 9], {**wanted, "margins": []}), "no margins were asked for"


def test_results_are_written_as_json_and_tables(module: object, tmp_path: Path) -> None:
    written = module("written").written  # type: ignore[operator]
    rows = [{"case": "llama", "trouble": []}, {"case": "mellum", "cached tokens": 1234, "trouble": ["a | b", "c"]}]
    summary = [{"part": "outputs", "status": "failed", "reason": "x"}, {"part": "outputs: graphs", "status": "not run"}]
    found = {"machine": {"device": "CPU"}, "kit MB": 52.7, "outputs": rows, "summary": summary}
    written(found, tmp_path)
    assert json.loads((tmp_path / "gpu.json").read_text()) == found
    text = (tmp_path / "gpu.md").read_text()
    assert "device CPU, kit 52.7 MB." in text
    assert "| mellum | a / b; c | 1,234 |" in text
    assert "| outputs: graphs | not run |  |" in text


@pytest.fixture
def bench(module: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes a bench of a command line, whose parts are given."""
    pytest.importorskip("torch")
    kit, parts = module("kit"), module("parts")  # type: ignore[operator]
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(__version__="none"))

    def made(*arguments: str, minutes: str = "9", **given: Callable[[Any], list[dict[str, object]]]) -> Any:
        options = kit.options_of(["--out", str(tmp_path), "--minutes", minutes, *arguments])
        options.kit_mb = None
        bench = parts.Bench(options, time.monotonic())
        for name, part in given.items():
            monkeypatch.setattr(parts.Bench, f"_{name}", part)
        return bench

    return made


def test_the_summary_has_every_part_and_what_needs_cuda(bench: Callable[..., Any]) -> None:
    def fails(bench: Any) -> list[dict[str, object]]:
        bench.wrong.append("a wrong token")
        return [{}]

    def breaks(bench: Any) -> list[dict[str, object]]:
        raise KeyError(str(bench.options.device))

    def is_late(bench: Any) -> list[dict[str, object]]:
        bench.not_reached.append("llama, ours")
        return []

    ran = bench("--device", "cpu", outputs=fails, faults=breaks, speed=is_late, loads=lambda _: [{}, {}], branches=lambda _: [])
    assert ran.options.parts == ["outputs", "faults", "speed", "loads", "branches"]
    assert ran.run(ran.options.parts) == 1
    told = {line["part"]: (line["status"], line.get("reason")) for line in ran.found["summary"]}
    assert told["outputs"] == ("failed", "a wrong token")
    assert told["faults"] == ("failed", "KeyError: 'cpu'")
    assert told["speed"] == ("not reached", "not reached in time: llama, ours")
    assert told["loads"] == ("passed", "")
    assert told["branches"] == ("passed", "")
    assert [part for part, (status, _) in told.items() if status == "not run: needs CUDA"] == [
        "outputs: CUDA graphs", "outputs: streams beside overlap scheduling", "faults: late passes",
        "faults: late passes, no fence", "speed: HiCache, which pins its memory", "loads: the shape of Llama 3.1 8B",
    ]  # fmt: skip


def test_all_parts_must_pass(bench: Callable[..., Any]) -> None:
    ran = bench("--device", "cpu", "--parts", "loads", loads=lambda _: [{}])
    assert ran.run(ran.options.parts) == 0


def test_an_engine_that_has_no_time_is_not_reached(bench: Callable[..., Any]) -> None:
    late = bench("--device", "cpu", "--cases", "nothing", minutes="0")
    assert late._serve(late._placed("llama"), module_of(late).OUTPUT_CACHES["ours"]).requests == []
    assert late.not_reached == ["llama, ours"]
    assert late.wrong == []


def module_of(bench: Any) -> ModuleType:
    """Where a bench's class is."""
    return sys.modules[type(bench).__module__]


def test_the_times_in_the_cache_leave_out_the_clock(module: object, tmp_path: Path) -> None:
    times = module("cache_times")  # type: ignore[operator]
    path = tmp_path / "llama.ours.timing.jsonl"
    line = {
        "seconds": 2.0,
        "methods": {"nothing": [10, 0.1], "evict": [5, 0.25], "lock": [10, 0.05]},
        "batches": {"decode": [8, 1.0, 24], "prefill": [2, 0.5, 4]},
    }
    path.write_text(json.dumps(line) + "\n" + json.dumps(line) + "\n")
    read = times.Times.read(path)
    assert read.spent == pytest.approx({"evict": 0.4, "lock": 0.0})
    assert (read.steps, read.decode_steps, read.decode_rows, read.rates) == (20, 16, 48, [5.0, 5.0])
    assert "llama, ours: 40000 | 20000 | 5.0 (5.0, 5.0) | 3.0 | 10.0%" in times.table([("llama", "ours", 10)], tmp_path)


def test_a_kit_is_packed_and_unpacked(module: object, tmp_path: Path) -> None:
    wheel = tmp_path / "sglang.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("sglang/srt/a.py", "A = 1")
        archive.writestr("sglang/multimodal_gen/b.py", "B = 1")
        archive.writestr("sglang/srt/rust_extensions/loader.py", "R = 1")
        archive.writestr("sglang/srt/rust_extensions/server.so", "")
        archive.writestr("sglang/kernels/c.cu", "")
        archive.mkdir("sglang/kernels/jit/")
        archive.writestr("sglang/kernels/jit/d.cu", "")
    kit, site = tmp_path / "kit", tmp_path / "site"
    kit.mkdir()
    module("pack").packed(wheel, kit / "sglang.tar.xz")  # type: ignore[operator]
    with zipfile.ZipFile(kit / "other-1-py3-none-any.whl", "w") as archive:
        archive.writestr("other/__init__.py", "")
    assert module("kit").unpack(kit, site) == [str(site)]  # type: ignore[operator]
    found = sorted(str(path.relative_to(site)) for path in site.rglob("*.py"))
    assert found == ["other/__init__.py", "sglang/srt/a.py", "sglang/srt/rust_extensions/loader.py"]
    assert (site / "sglang/kernels/jit/d.cu").is_file()


def test_an_archive_that_leaves_its_folder_is_refused(module: object, tmp_path: Path) -> None:
    kit = tmp_path / "kit"
    kit.mkdir()
    with tarfile.open(kit / "a.tar.xz", "w:xz") as archive:
        archive.addfile(tarfile.TarInfo("../out.py"), io.BytesIO())
    with pytest.raises(tarfile.TarError):
        module("kit").unpack(kit, tmp_path / "site")  # type: ignore[operator]
    assert not (tmp_path / "out.py").exists()


def test_the_rehearsal_changes_nothing_unless_it_is_asked_for() -> None:
    assert "UNIFIED_TREE_REHEARSAL" not in os.environ
    spec = importlib.util.spec_from_file_location("rehearsal", HERE / "rehearsal" / "sitecustomize.py")
    assert spec is not None and spec.loader is not None
    torch = pytest.importorskip("torch")
    rehearsal = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rehearsal)
    assert not torch.cuda.is_available() or torch.cuda.get_device_name() != "rehearsal"
    with rehearsal.OnHost():
        assert torch.zeros(2, device="cuda:0").device.type == "cpu"
        assert torch.zeros(2).to(torch.device("cuda")).device.type == "cpu"
        assert torch.device("cuda").type == "cuda"
