"""The page of a recording."""

from __future__ import annotations

import gzip
import zlib
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.inspector.frame_shapes import checked
from unified_tree.controllers.inspector.frames import read_frames
from unified_tree.controllers.inspector.page_process import listen, token_for, url_of
from unified_tree.controllers.inspector.page_server import PageServer
from unified_tree.controllers.inspector.picture import Picture
from unified_tree.controllers.inspector.recorded_walk import recorded_walk
from unified_tree.inputs.given_files import open_given
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path


def read_recording(path: Path) -> Picture:
    """What a recording shows at its end. Raises ConfigurationError for a file that is none, or cannot be read."""
    picture = Picture()
    try:
        with open_given(path) as file, gzip.GzipFile(fileobj=file, mode="rb") as stream:
            for frame in read_frames(stream):
                picture.feed(checked(frame, picture.cache.get("components", ())))
    except EOFError:
        pass  # whoever wrote it was stopped
    except (OSError, zlib.error, ConfigurationError) as error:
        raise ConfigurationError(f"{path}: cannot be read as a recording of an inspector: {error}") from error
    if not picture.cache:
        raise ConfigurationError(f"{path}: there is nothing in this recording")
    picture.is_over = True
    return picture


def recording_server(path: Path, host: str, port: int, token: str | None) -> tuple[PageServer, str]:
    """A server of a recording's page, which `serve_forever` runs, and its address.

    Raises ConfigurationError for a file that is no recording, and if it cannot listen there.
    """
    picture = read_recording(path)
    asked = token_for(host, token)
    listener = listen(host, port)

    def ask(question: Any) -> dict[str, Any]:
        return recorded_walk(picture, question)

    return PageServer(listener, picture, asked, ask, lambda: None), url_of(listener, asked)
