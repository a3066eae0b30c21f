"""`unified-tree doctor`: reads figures from a file or an endpoint, and prints what they say."""

from __future__ import annotations

import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from unified_tree.controllers.doctor.figures import Figures
from unified_tree.controllers.doctor.findings import findings
from unified_tree.errors import ConfigurationError

if TYPE_CHECKING:
    from unified_tree.controllers.doctor.finding import Finding

TIMEOUT_S = 10.0
GZIP = b"\x1f\x8b"


def read_figures(source: str, token: str | None = None) -> list[Figures]:
    """Figures of a file, of the end of a recording, or of what an inspector's page has now.

    Args:
        source: a file's path, or an address that `Inspector.open` gave, with its token.

    Raises ConfigurationError if there are none.
    """
    if source.startswith(("http://", "https://")):
        return Figures.from_json(_fetched(source, token))
    path = Path(source)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{source}: cannot be read: {error.strerror}") from error
    if content.startswith(GZIP):
        from unified_tree.controllers.inspector.diagnosed import figures_of
        from unified_tree.controllers.inspector.recording_page import read_recording

        return [figures_of(read_recording(path))]
    return Figures.from_json(content)


def _fetched(address: str, token: str | None) -> bytes:
    url = urlsplit(address)
    token = token or dict(parse_qsl(url.query)).get("token")
    asked = urlunsplit((url.scheme, url.netloc, "/api/doctor", "", ""))
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(asked, headers=headers), timeout=TIMEOUT_S) as answer:
            content: bytes = answer.read()
            return content
    except OSError as error:
        raise ConfigurationError(f"{asked}: {error}") from error


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
