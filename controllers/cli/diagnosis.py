"""`unified-tree doctor`: reads figures from a file or an endpoint, and prints what they say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unified_tree.controllers.doctor.figures import Figures
from unified_tree.controllers.doctor.findings import findings
from unified_tree.controllers.inspector.page_client import answer_of
from unified_tree.inputs.given_files import read_given
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.controllers.doctor.findings import Finding

GZIP = b"\x1f\x8b"


def read_figures(source: str, token: str | None = None) -> list[Figures]:
    """Figures of a file, of the end of a recording, or of what an inspector's page has now.

    Args:
        source: a file's path, or an address that `Inspector.open` gave, with its token.

    Raises ConfigurationError if there are none.
    """
    if source.startswith(("http://", "https://")):
        return Figures.from_json(answer_of(source, "/api/doctor", token))
    path = Path(source)
    content = read_given(path)
    if content.startswith(GZIP):
        from unified_tree.controllers.inspector.picture import figures_of
        from unified_tree.controllers.inspector.recording_page import read_recording

        picture = read_recording(path)
        if not picture.figures:
            raise ConfigurationError(f"{source}: this recording has no figures")
        return [figures_of(picture)]
    return Figures.from_json(content)


def diagnosis(figures: Figures, limit: int = 5) -> str:
    """What the figures of a cache say, as text."""
    asked = figures.prompt_tokens
    hits = figures.hit_tokens / asked if asked else 0.0
    head = f"{figures.title}: {hits:.1%} of {asked:,} prompt tokens were hits"
    found: Sequence[Finding] = findings(figures, limit)
    if not found:
        return f"{head}; nothing that a setting could change costs half a percent."
    return "\n".join([f"{head}. What costs the rest, in percent of the prompts:", *(f"{each}" for each in found)])


def print_diagnosis(caches: Sequence[Figures], limit: int = 5) -> None:
    """Print what the figures of caches say."""
    print("\n\n".join(diagnosis(figures, limit) for figures in caches))
