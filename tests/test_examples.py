"""The examples run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from waiting import PROGRAM_S

ROOT = Path(__file__).parents[1]


def test_a_scheduler_embeds_the_cache() -> None:
    """Prompts share 600 tokens, nine pages of 64; the last four come for the second time."""
    ran = subprocess.run(
        [sys.executable, str(ROOT / "examples/embed.py")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
        check=True,
    )
    first, second = ran.stdout.splitlines()
    assert first == f"cached tokens of each prompt: 0 {'576 ' * 11}896 896 896 896"
    assert second == "hit rate 69%, violations []"
    assert len((ROOT / "examples/embed.py").read_text().splitlines()) <= 70


def test_the_list_names_files_that_exist() -> None:
    page = (ROOT / "examples/README.md").read_text()
    for target in page.split("](")[1:]:
        assert (ROOT / "examples" / target.partition(")")[0]).exists()
