"""The page of a recording."""

from __future__ import annotations

import gzip
import zlib
from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.controllers.inspector.frames import checked, read_frames
from unified_tree.controllers.inspector.page_process import listen, token_for, url_of
from unified_tree.controllers.inspector.page_server import PageServer
from unified_tree.controllers.inspector.picture import Picture
from unified_tree.controllers.inspector.tree_walk import COMPONENT_MASK, LOCKED, ON_HOST, PAGES_SHIFT, STRANDED
from unified_tree.inputs.given_files import open_given
from unified_tree.inputs.printable import printable
from unified_tree.terms.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from unified_tree.controllers.inspector.tree_picture import TreePicture


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


INT64_BYTES = 8


def recorded_walk(picture: Picture, question: Mapping[str, Any]) -> dict[str, Any]:
    """As `prompt_walk`, with no misses. Cost: O(children of the nodes on the path)."""
    tree, edges = picture.tree, picture.tokens
    if "request" in question:
        return {"error": "a recording keeps no prompts; paste its tokens"}
    if tree is None or edges is None:
        return {"error": "this recording has no tokens"}
    bigram, namespace = question["bigram"], question["namespace"]
    ids = array("q", question["tokens"])
    if not len(ids) - bigram > 0:
        return {"error": "a prompt has at least one token"}
    data = np.stack((ids[:-1], ids[1:]), axis=1).tobytes() if bigram else ids.tobytes()
    length = len(ids) - bigram
    width = INT64_BYTES * (1 + bigram)
    page = picture.cache["page_size"]
    wanted = (printable(namespace), bigram, False)  # a namespace that is still valid
    top = next((i for i, root in enumerate(tree.roots) if root == wanted), None)
    path, known = _path(tree, edges, data, top, page * width, width)
    required = [component for component in picture.cache["components"] if component["required"]]
    is_gated = any(not component["coverage"].startswith("Path") for component in required)
    ends = [int(tree.rows[node, 3]) for node in path if tree.rows[node, 5]]
    reachable = max((end for end in ends if end <= min(known, length - 1)), default=0)
    if not is_gated and path and tree.rows[path[-1], 5]:
        reachable = min(known, (length - 1) // page * page)
    return {
        "namespace": printable(namespace),
        "prompt": length,
        "left_out": 0,
        "device": None,
        "reachable": reachable,
        "rebuild_tokens": 0,
        "path": None,
        "known": known,
        "remembers": False,
        "misses": [],
        "losses": [{"component": "unknown", "kept_on": None, "begin": known, "end": length}] if known < length else [],
        "nodes": [_node(tree, node, known) for node in path],
    }


def _path(
    tree: TreePicture, edges: list[bytes], data: bytes, root: int | None, page_bytes: int, width: int
) -> tuple[list[int], int]:
    """The nodes that a prompt passes, by index, and how far they know it, in tokens."""
    path: list[int] = []
    at = 0
    parents = tree.rows[:, 1]
    children = np.flatnonzero((parents == 0) & (tree.rows[:, 4] == root)) if root is not None else np.empty(0, np.int64)
    while at < len(data):
        page = data[at : at + page_bytes]
        node = next((child for child in children.tolist() if len(page) == page_bytes and edges[child].startswith(page)), None)
        if node is None:
            break
        edge, begin = edges[node], at
        while at - begin < len(edge) and edge[at - begin : at - begin + page_bytes] == data[at : at + page_bytes]:
            at += page_bytes
        path.append(node)
        if at - begin < len(edge):
            break
        children = np.flatnonzero(parents == tree.rows[node, 0])
    return path, at // width


def _node(tree: TreePicture, node: int, known: int) -> dict[str, Any]:
    number, _, start, end, _, is_boundary, *_ = tree.rows[node].tolist()
    values = [
        [
            value & COMPONENT_MASK,
            int(bool(value & ON_HOST)),
            value >> PAGES_SHIFT,
            bool(value & LOCKED),
            bool(value & STRANDED),
        ]
        for value in tree.values_of(node).tolist()
    ]
    matched = min(known, end)
    return {"id": number, "begin": start, "end": end, "matched": matched, "boundary": bool(is_boundary), "values": values}
