"""Pages whose every byte follows from their number, for stores that evict, crash, or are read by other processes."""

from __future__ import annotations

from hashlib import sha256

from unified_tree.controllers.storage import StoredPool


class Clock:
    """Nanoseconds that pass when told to."""

    def __init__(self) -> None:
        self.now_ns = 10**18

    def __call__(self) -> int:
        return self.now_ns

    def pass_s(self, seconds: float) -> None:
        self.now_ns += int(seconds * 1e9)


def pool(value_bytes: int = 4160, name: str = "full") -> StoredPool:
    return StoredPool(name=name, format_digest=sha256(f"{name} {value_bytes}".encode()).digest(), value_bytes=value_bytes)


def key(number: int) -> bytes:
    return sha256(str(number).encode()).digest()


def keys(numbers: range | list[int]) -> list[bytes]:
    return [key(number) for number in numbers]


def body(number: int, value_bytes: int = 4160) -> bytes:
    """The first bytes of a page and the last belong to the number, and so do all between."""
    unit = sha256(f"page {number}".encode()).digest()
    return (unit * (value_bytes // len(unit) + 1))[:value_bytes]


def page(number: int, value_bytes: int = 4160) -> memoryview:
    return memoryview(bytearray(body(number, value_bytes)))


def pages(numbers: range | list[int], value_bytes: int = 4160) -> list[memoryview]:
    return [page(number, value_bytes) for number in numbers]


def blanks(count: int, value_bytes: int = 4160) -> list[memoryview]:
    return [memoryview(bytearray(value_bytes)) for _ in range(count)]
