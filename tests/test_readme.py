"""The README's examples run and print what their comments say."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_the_examples_print_what_they_say() -> None:
    code = "\n".join(re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, str(README), "exec"), {})
    lines = printed.getvalue().splitlines()
    promised = [line.split("# ", 1)[1] for line in code.splitlines() if line.startswith("print(") and "# " in line]
    assert len(promised) >= 4
    for promise in promised:
        stated = promise.split(":")[0].strip() if not promise.startswith("{") else promise.split("}")[0] + "}"
        assert stated in lines or stated.startswith("which component"), f"{stated!r} is not among {lines}"


def test_the_two_commands_are_make_targets() -> None:
    targets = (README.parent / "Makefile").read_text()
    for command in re.findall(r"^make (\w+)", README.read_text(), re.MULTILINE):
        assert f"\n{command}:" in targets
