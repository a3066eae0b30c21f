"""The bench of ablations: each policy lacks one part of `density`, and that alone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from grove import Grove
from kinds import FULL
from traffic import PATHS, STATES, Served, Texts
from waiting import PROGRAM_S

from benches.machine import core
from unified_tree.policies.density.hit_density import HitDensity

if core() == "compiled":
    pytest.skip("a compiled order keeps its parts", allow_module_level=True)

from benches import ablations

PARTS = {
    name: made
    for name, made in vars(ablations).items()
    if isinstance(made, type) and made.__module__ == ablations.__name__ and name.startswith("no_")
}
ROOT = Path(__file__).parents[3]


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
    return [server.serve(prompt) for prompt in (returning(texts) if seed else texts.traffic(400, changes=True))]


@pytest.mark.parametrize("part", sorted(set(PARTS) - {"no_copies"}))
def test_without_a_part_something_else_is_hit(part: str) -> None:
    name = f"benches.ablations:{part}"
    assert any(hits("density", kind, seed) != hits(name, kind, seed) for kind in (PATHS, STATES) for seed in range(3))


def test_without_copies_the_older_value_goes_though_it_is_on_one_tier() -> None:
    lost = []
    for policy in ("density", "benches.ablations:no_copies"):
        grove = Grove([FULL], policy=policy)
        for text in ("abcdefgh", "ijklmnop"):
            grove.put(text)
            grove.match(text)
        grove.backup("ijklmnop")
        learned = grove.tree.state.policy
        assert isinstance(learned, HitDensity)
        list(learned._turns.learn(learned.now))
        learned._note_mode()
        lost.append(grove.tree.evict({"full": 4}).lost)
    assert lost == [0, 1]


def test_each_part_of_the_list_is_there() -> None:
    parts = "groups", "places", "tokens_lost", "earlier", "last_again", "counts", "shadow", "settling", "rise", "copies"
    assert set(PARTS) == {f"no_{part}" for part in parts}
    assert all(part.__doc__ for part in PARTS.values())


def test_worlds_replay_them(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    options = ["--seeds", "0", "--jobs", "1", "--requests", "40", "--json", str(file)]
    command = [sys.executable, "-m", "benches.worlds", *options, "--policies", "lru,density,benches.ablations:no_places"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PROGRAM_S, check=False)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["policy"] for row in rows] == ["lru", "density", "benches.ablations:no_places"]
