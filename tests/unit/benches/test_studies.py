"""The studies run at tiny sizes. What they compute is checked by `make deep`: the documentation's tables rest on it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from grove import Grove
from kinds import FULL
from traffic import PATHS, STATES, Served, Texts
from waiting import PROGRAM_S

from benches import cell
from benches.cell import Cell
from benches.machine import core
from benches.studies import sampling, splits
from benches.studies.sessions import Served as Turn
from benches.studies.sessions import fitting
from unified_tree.controllers.workbench.runs.plan import RowKind, RowSpec
from unified_tree.controllers.workbench.runs.row import run_row
from unified_tree.controllers.workbench.sizing.sample import subtrees
from unified_tree.policies.density.hit_density import HitDensity

ROOT = Path(__file__).parents[3]
STUDIES: dict[str, tuple[Callable[[list[str]], int], list[str]]] = {
    "sampling": (sampling.main, ["built-in agents"]),
    "splits": (splits.main, ["built-in agents gpt-oss-20b 8", "--json"]),
}
PARTS_OF_DENSITY = (
    *("groups", "places", "tokens_lost", "reach", "earlier", "counts", "shadow", "settling", "rise"),
    "copies",
)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A workload of few requests, in two splits."""
    monkeypatch.setitem(cell.WORKLOADS, "built-in agents", ("--requests", "60"))
    monkeypatch.setattr(splits, "SHARES", (0.1, 0.9999))


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_runs(study: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main, options = STUDIES[study]
    file = [str(tmp_path / "rows.json")] if options[-1] == "--json" else []
    assert main([str(tmp_path), "--only", *options, *file]) == 0
    heads, _, row, *_ = capsys.readouterr().out.splitlines()
    assert row.startswith("| built-in agents | ") and row.count("|") == heads.count("|")
    assert not file or json.loads((tmp_path / "rows.json").read_text())


@pytest.mark.skipif(core() == "compiled", reason="a compiled order keeps its parts")
def test_worlds_replay_without_a_part(tmp_path: Path) -> None:
    file, without = tmp_path / "rows.jsonl", "benches.studies.ablations:no_places"
    options = ["--seeds", "0", "--jobs", "1", "--requests", "40", "--policies", f"density,{without}", "--json", str(file)]
    command = [sys.executable, "-m", "benches.worlds", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["policy"] for line in file.read_text().splitlines()] == ["density", without]


@pytest.mark.deep
def test_what_a_sample_notes_is_what_a_cache_hits(tmp_path: Path) -> None:
    plan = Cell("built-in agents", sampling.MODEL, 20).plan(tmp_path)
    noted = sampling.Noted(plan, None)
    noted.run()
    row = run_row(plan, RowSpec(kind=RowKind.UNBOUNDED, policy="lru", page_counts={"full": 1 << 20}, is_bounded=False))
    assert noted.tokens.sum(axis=1).tolist() == [row.prompt_tokens, row.hit_tokens]
    trees, _ = subtrees(plan.workload.requests)
    off = [max(sampling.off_by(noted.tokens, trees, share)) for share in (1.0, 0.5, 0.05)]
    assert 0.0 == off[0] < off[1] < off[2]


@pytest.mark.deep
@pytest.mark.parametrize("model", ["gemma-3-27b", "deepseek-v4-flash"])
def test_a_split_gives_windows_and_states_their_share(model: str, tmp_path: Path) -> None:
    plan = Cell("built-in agents", model, 100).plan(tmp_path)
    bytes_of = plan.composition.pool_page_bytes()
    for share in (0.02, 0.2, 0.5):
        split = splits.static_split(plan, {"swa": 100}, share)
        assert split is not None
        assert split["swa"] * bytes_of["swa"] / plan.device_bytes == pytest.approx(share, abs=0.01)
        assert sum(count * bytes_of[name] for name, count in split.items()) == pytest.approx(plan.device_bytes, rel=0.01)


def returning(texts: Texts) -> Iterator[list[int]]:
    """Short sessions whose turns take their time, long ones that are left, documents that are asked about."""
    documents = [texts.new(30, 90) for _ in range(6)]
    sessions = [texts.new(4, 8) for _ in range(12)]
    for at in range(600):
        if at % 3 == 0:
            session = sessions[at // 3 % 12]
            session += texts.new(1, 4)
            if len(session) > 40:
                session[:] = texts.new(4, 8)
            yield list(session)
        elif at % 3 == 1:
            yield texts.draw.choice(documents) + texts.new(2, 5)
        else:
            yield texts.new(20, 60)


def hits(policy: str, kind: str, seed: int) -> list[int]:
    server, texts = Served(policy, kind, 500 if kind == PATHS else 4_000, 30), Texts(seed)
    return [server.serve(each) for each in (returning(texts) if seed else texts.traffic(400, changes=True))]


@pytest.mark.deep
@pytest.mark.skipif(core() == "compiled", reason="a compiled order keeps its parts")
@pytest.mark.parametrize("part", PARTS_OF_DENSITY[:-1])
def test_without_a_part_something_else_is_hit(part: str) -> None:
    name = f"benches.studies.ablations:no_{part}"
    assert any(hits("density", kind, seed) != hits(name, kind, seed) for kind in (PATHS, STATES) for seed in range(3))


@pytest.mark.deep
@pytest.mark.skipif(core() == "compiled", reason="a compiled order keeps its parts")
def test_without_copies_the_older_value_goes_though_it_is_on_one_tier() -> None:
    lost = []
    for policy in ("density", "benches.studies.ablations:no_copies"):
        grove = Grove([FULL], policy=policy)
        for text in ("abcdefgh", "ijklmnop"):
            grove.put(text)
            grove.match(text)
        grove.backup("ijklmnop")
        learned = grove.tree.state.policy
        assert isinstance(learned, HitDensity)
        list(learned._worth.turns.learn(grove.tree.state.clock))
        learned._note_mode()
        lost.append(grove.tree.evict({"full": 4}).lost)
    assert lost == [0, 1]


def test_the_table_of_engines_bytes_says_what_is_read_now() -> None:
    """The engines' columns are of a run with the engines; ours is compared here."""
    pytest.importorskip("transformers")
    from benches.studies.engine_bytes import read, told
    from benches.studies.engine_files import FAMILIES, file_of

    page = (Path(__file__).parents[3] / "docs/lab/engine_bytes.md").read_text()
    for name in FAMILIES:
        assert f"| {name} | {told(read(name, file_of(name)))} |" in page, name


def test_the_contexts_of_open_agents_fit_in_as_much_as_is_said() -> None:
    """Two agents of a root with a block in common, of which the first goes on after the second has ended."""
    turns = [
        Turn(begin, begin + 1.0, 0, np.array(blocks), agent)
        for begin, agent, blocks in [(0.0, 0, [1, 2]), (2.0, 1, [1, 9]), (5.0, 0, [1, 2, 3])]
    ]
    assert fitting(turns, 0) == 3 + 1
    assert fitting(turns, 10) == 3 + 1 + 10 * (2 + 1)
    apart = [*turns, Turn(5.0, 6.0, 1, np.array([1, 2]), 2)]
    assert fitting(apart, 0) == 3 + 2 + 2
