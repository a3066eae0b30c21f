"""`unified-tree doctor`: reads figures from a file or an endpoint, and prints what they say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unified_tree.controllers.doctor.figures import Figures
from unified_tree.controllers.doctor.findings import findings
from unified_tree.controllers.inspector.page_client import answer_of
from unified_tree.inputs.given_files import NotJsonError, parse_json, read_given
from unified_tree.inputs.printable import printable
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.controllers.doctor.findings import Finding

ADDRESSES = ("http://", "https://")
OLD_S = 5.0
"""Figures of a running cache that are older than this say so."""
TRACE = "; a trace, as this seems to be, has none: `unified-tree replay FILE --figures FIGURES` makes figures of it"
GZIP = b"\x1f\x8b"


def read_figures(source: str, token: str | None = None) -> list[Figures]:
    """Figures of a file, of the end of a recording, or of what an inspector's page has now.

    Args:
        source: a file's path, or an address that `Inspector.open` gave, with its token.

    Raises ConfigurationError if there are none.
    """
    if source.startswith(ADDRESSES):
        return _figures_in(answer_of(source, "/api/doctor", token), source)
    path = Path(source)
    content = read_given(path)
    if content.startswith(GZIP):
        from unified_tree.controllers.inspector.picture import figures_of
        from unified_tree.controllers.inspector.recording_page import read_recording

        picture = read_recording(path)
        if not picture.figures:
            raise ConfigurationError(f"{source}: this recording has no figures")
        return [figures_of(picture)]
    return _figures_in(content, source)


def _figures_in(content: bytes, source: str) -> list[Figures]:
    try:
        return Figures.from_json(content)
    except ConfigurationError as error:
        why = f"{error}{TRACE if _is_lines(content) else ''}"
        if isinstance(error.__cause__, NotJsonError) and source.startswith(ADDRESSES):
            why = f"no inspector answers there: {error.__cause__}"
        raise ConfigurationError(f"{printable(source)}: {why}") from error


def _is_lines(content: bytes) -> bool:
    """Whether a text has several lines, and the first is a JSON object of its own, as in a trace."""
    first, _, rest = content.partition(b"\n")
    try:
        return bool(rest.strip()) and isinstance(parse_json(first), dict)
    except NotJsonError:
        return False


def diagnosis(figures: Figures, limit: int = 5) -> str:
    """What the figures of a cache say, as text."""
    asked = figures.prompt_tokens
    hits = figures.hit_tokens / asked if asked else 0.0
    head = f"{figures.title}: {hits:.1%} of {asked:,} prompt tokens were hits{age_said(figures.age_s)}"
    found: Sequence[Finding] = findings(figures, limit)
    if not found:
        return f"{head}; nothing that a setting could change costs half a percent."
    return "\n".join([f"{head}. What costs the rest, in percent of the prompts:", *(f"{each}" for each in found)])


def age_said(age_s: float) -> str:
    """How old the figures of a running cache are, if that is worth a word."""
    return f", {age_s:,.0f} s ago: the cache has told nothing since, so it may not be polled" if age_s > OLD_S else ""
