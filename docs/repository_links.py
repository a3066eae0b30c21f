"""Programs of `examples` are links on a page in the repository; the site has them in the page itself."""

from __future__ import annotations

import re
from typing import Any

LINK = re.compile(r"\[([^\]]+)\]\(\.\./examples/[^)]+\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called once for each page."""
    return LINK.sub(r"\1", markdown)
