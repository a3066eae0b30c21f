"""Shows the examples of docstrings as code: Markdown would read `>>>` as a quotation, and `[a][b]` as a link."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^>>> .*(?:\n(?!\n).+)*\n?)(?:\n*^>>> .*(?:\n.+)*\n?)*", re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts each example of a docstring into a fenced block."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called once for each object that has been read."""
        if obj.docstring is not None:
            obj.docstring.value = EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", obj.docstring.value)
