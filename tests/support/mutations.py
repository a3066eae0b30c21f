"""Inputs that are nearly right: JSON with something wrong in one place, and bytes with something wrong anywhere."""

from __future__ import annotations

import copy
import gzip
import json
import random
from typing import Any

DEEP: Any = []
for _ in range(300):
    DEEP = [DEEP]
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 1 << 31, 1 << 53, (1 << 63) - 1, 1 << 63, 10**30, -(10**30), 0.5, -0.0, 1e308, -1e308,
    float("nan"), float("inf"), -float("inf"), "", "x", "NaN", "1", "-1", "\ud800", "a\nb\0c", "\u202e", "9" * 400, "y" * 5000,
    [], {}, [None], [[]], [1, 2, 3], ["a"], {"a": 1}, {"": None}, [1.5], [True], [-1], [10**30], DEEP, {"a": DEEP},
]  # fmt: skip
"""What a value is replaced by."""


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values inside of one, and its own."""
    inner = list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    return [path, *(place for key, item in inner for place in places(item, (*path, key)))]


def mutated(value: Any, draw: random.Random) -> Any:
    """A copy that is wrong in a place or two, or maybe not."""
    changed = copy.deepcopy(value)
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        changed = _changed(changed, draw.choice(places(changed)), draw)
    return changed


def _changed(value: Any, path: tuple[Any, ...], draw: random.Random) -> Any:
    if not path:
        return copy.deepcopy(draw.choice(VALUES)) if draw.random() < 0.05 else value
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    key = path[-1]
    kind = draw.random()
    if kind < 0.7:
        holder[key] = copy.deepcopy(draw.choice(VALUES))
    elif kind < 0.8:
        del holder[key]
    elif isinstance(holder, list):
        holder.insert(draw.randint(0, len(holder)), copy.deepcopy(draw.choice([*VALUES, holder[key]])))
    else:
        holder[draw.choice(["", "x", f"{key}_", key.upper(), "\ud800"])] = holder.pop(key) if kind < 0.9 else holder[key]
    return value


def text_of(value: Any, draw: random.Random) -> bytes:
    """JSON of a value, maybe with what only a text can have wrong."""
    text = json.dumps(value)
    kind = draw.random()
    if kind < 0.05:
        text = text.replace("{", '{"twice": 1, "twice": 2, ', 1)
    elif kind < 0.08:
        text = text.replace(":", ": 1" + "0" * 5000 + ", ", 1)
    elif kind < 0.1:
        text = "[" * 100_000
    elif kind < 0.12:
        text = text.replace("[", "[" * 20_000, 1)
    return text.encode("utf-8", "surrogatepass")


def spoilt(data: bytes, draw: random.Random) -> bytes:
    """Bytes, maybe cut off, overwritten, zipped, in another encoding, or not at all what they were."""
    kind = draw.randint(0, 11)
    at = draw.randint(0, len(data))
    if kind == 0:
        return data[:at]
    if kind == 1:
        return data[:at] + draw.randbytes(draw.randint(1, 8)) + data[at + draw.randint(0, 8) :]
    if kind == 2:
        return gzip.compress(data)[: draw.randint(0, 40)]
    if kind == 3:
        return gzip.compress(data)[:-1]
    if kind == 4:
        return b"\x1f\x8b" + data
    if kind == 5:
        return data.decode("utf-8", "replace").encode(draw.choice(["utf-16", "utf-32", "utf-8-sig"]))
    if kind == 6:
        return b"\0" * draw.randint(1, 100) + data
    if kind == 7:
        return b"\xff\xfe" + data
    if kind == 8:
        return draw.randbytes(draw.randint(0, 300))
    if kind == 9:
        return gzip.compress(gzip.compress(data))
    return data
