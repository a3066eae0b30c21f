"""The README said eight policies where there are nine, and left out four model types; two pages counted the same cells
differently; and `dump` printed words that its legend did not have.
"""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import numpy as np
import pytest
from kinds import FULL, MAMBA, swa

from unified_tree import Key, MissCause, Tier, UnifiedTree
from unified_tree.components.class_defaults import WRAPPED
from unified_tree.components.hf_config import ALIASES, READERS
from unified_tree.policies.table import POLICIES

ROOT = Path(__file__).parents[2]
NUMBERS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_page_of_models_has_every_model_type_and_no_other() -> None:
    [(count, listed)] = re.findall(r"of these (\d+) types, [a-z ]+: ([a-z0-9_, ]+)\.", page("docs/lab/models.md"))
    known = sorted({*READERS, *WRAPPED, *ALIASES})
    assert [name.strip() for name in listed.split(",")] == known
    assert int(count) == len(known)
    assert f"[{count} types](docs/models.md)" in page("README.md")
    assert f"[{count} types](lab/models.md)" in page("docs/models.md")


def test_the_readme_has_every_policy_and_their_number() -> None:
    [(count, listed)] = re.findall(r"\| eviction \| (\d+) policies \(([^)]*)\)", page("README.md"))
    assert [name.strip() for name in listed.split(",")] == list(POLICIES)
    assert int(count) == len(POLICIES)


@pytest.mark.parametrize("name", ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))])
def test_no_page_counts_the_policies_otherwise(name: str) -> None:
    for count in re.findall(r"\b(\w+) (?:eviction )?policies\b", page(name)):
        known = NUMBERS.index(count.lower()) if count.lower() in NUMBERS else int(count) if count.isdigit() else None
        assert known is None or known <= 4 or known == len(POLICIES), f"{count} policies"  # a few are some of them


def test_the_cells_that_are_counted_are_those_of_the_table() -> None:
    """Each page that counts the cells where one budget hits as much as the best static split counts the rows of the table."""
    text = page("docs/lab/pools.md")
    table = text[text.index("best of eleven static ones") :]
    ratios = [float(row.split("|")[-2]) for row in table.splitlines() if re.match(r"\|.*\*\*\d+\.\d\*\*", row)]
    as_much = sum(ratio >= 1.0 for ratio in ratios)
    assert len(ratios) == 20
    assert f"in {as_much} of these {len(ratios)}" in text
    assert f"[{as_much} of {len(ratios)} cells](lab/pools.md#under-density)" in page("docs/operating.md")


def test_every_cause_of_a_miss_is_in_each_table_or_list_of_them() -> None:
    for name, shown in (
        ("docs/operating.md", [cause.label for cause in MissCause]),
        ("docs/sglang.md", [cause.label for cause in MissCause]),
    ):
        rows = [line[2:] for line in page(name).splitlines() if line.startswith(("| `", "- `"))]
        named = {word for row in rows for word in re.findall(r"`(\w+)`", re.split(r"\||: ", row)[0])}
        named |= set(re.findall(r"`(\w+)` does not occur", page(name)))
        assert [word for word in shown if word not in named] == [], name


def some_tree(seed: int) -> UnifiedTree:
    """A tree with values of all kinds on both tiers, locks, and keys of both kinds."""
    rng = Random(seed)
    tree = UnifiedTree([FULL, swa(4), MAMBA], 2)
    pages = 0

    def taken(count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        nonlocal pages
        pages += count
        return np.arange(pages - count, pages)

    for _ in range(12):
        tokens = [rng.randint(0, 1) for _ in range(rng.randint(3, 15))]
        key = Key(tokens, rng.choice(["", "tenant"]), bigram=rng.random() < 0.4)
        end = len(key) // 2 * 2
        if not end:
            continue
        path = tree.match_prefix(key, touch=False).path_length
        wanted = {"full": taken((end - min(path, end)) // 2)}
        if rng.random() < 0.7:
            wanted["swa"] = taken(min(2, end // 2))
        states = {"mamba": {end: int(taken(1)[0])}} if rng.random() < 0.7 else {}
        result = tree.insert(key, wanted, states)
        if rng.random() < 0.5 and tree.match_prefix(key, touch=False).device.length == result.boundary.length > 0:
            tree.lock(result.boundary)
    return tree


def words_of(dump: str) -> set[str]:
    """What a dump prints that is no number, and no name that its caller gave."""
    found = set()
    for line in dump.splitlines():
        line = re.sub(r"namespace '.*?'", "namespace", line)
        line = re.sub(r"\[[\d, ]*[\])]", "", line)
        for word in line.split():
            word = re.sub(r"\b(full|swa|mamba)\b:?\d*", "", word)
            word = re.sub(r"#\d+", "#", word)
            found |= {"h:"} if word.startswith("h:") else set()
            found |= set(re.findall(r"[a-z]+(?!:)|[*!#]", word.removeprefix("h:")))
    return found


@pytest.mark.parametrize("tokens", [False, True])
def test_every_word_of_a_dump_is_in_its_legend(tokens: bool) -> None:
    found: set[str] = set()
    for seed in range(8):
        found |= words_of(some_tree(seed).dump(tokens=tokens))
    assert {"namespace", "bigrams", "resumable", "*", "#"} <= found
    legend = UnifiedTree.dump.__doc__ or ""
    docs = next(line for line in page("docs/debugging.md").splitlines() if line.startswith("`cache.tree.dump()`"))
    for word in found - {"namespace"}:
        assert f"`{word}`" in legend, f"{word!r} is not in the docstring"
        assert f"`{word}`" in docs, f"{word!r} is not in docs/debugging.md"


def test_the_legend_names_what_stands_on_host() -> None:
    tree = UnifiedTree([FULL], 2)
    tree.insert(Key([1, 2, 3, 4]), {"full": np.array([0, 1])})
    assert words_of("  #1 [0, 4) h:full:2!") == {"#", "h:", "!"}
    assert tree.pool("full", Tier.DEVICE).used_pages == 2
