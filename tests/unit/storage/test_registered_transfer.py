"""Which pages go directly, which by the bounce buffer, and what the client is told of memory."""

from __future__ import annotations

import random

import pytest

from unified_tree.controllers.storage.registered_storage import (
    BounceBuffer,
    Direction,
    RegisteredMemory,
    RegisteredTransfer,
    address_of,
)
from unified_tree.terms.errors import PageError, StorageError

PAGE = 64


class Client:
    """Refuses overlaps, as clients do."""

    def __init__(self) -> None:
        self.known: dict[int, int] = {}
        self.refuses = False

    def register(self, address: int, size: int) -> None:
        overlapping = any(start < address + size and address < start + length for start, length in self.known.items())
        if overlapping or self.refuses or size <= 0:
            raise StorageError("refused")
        self.known[address] = size

    def unregister(self, address: int) -> None:
        del self.known[address]


def made() -> tuple[RegisteredMemory, Client]:
    client = Client()
    return RegisteredMemory(client.register, client.unregister), client


def test_overlaps_are_registered_once() -> None:
    memory, client = made()
    whole = memoryview(bytearray(1000))
    start = address_of(whole)
    for part in (whole[200:400], whole[200:400], whole[300:500], whole[600:700], whole[250:260], whole, whole):
        memory.add(part)
    assert sorted((address - start, size) for address, size in client.known.items()) == [
        (0, 200),
        (200, 200),
        (400, 100),
        (500, 100),
        (600, 100),
        (700, 300),
    ]
    assert whole[200:400] in memory and whole[0:10] in memory
    assert whole[390:410] not in memory, "a page across two regions is in none"
    memory.release()
    assert not client.known and whole[0:10] not in memory


def test_random_overlaps_are_never_registered_twice_and_always_covered() -> None:
    choose = random.Random(5)
    for _ in range(50):
        memory, client = made()
        whole = memoryview(bytearray(300))
        start, covered = address_of(whole), set[int]()
        for _ in range(12):
            low, high = sorted(choose.sample(range(301), 2))
            memory.add(whole[low:high])
            covered |= set(range(low, high))
            told = [byte for address, size in client.known.items() for byte in range(address - start, address - start + size)]
            assert sorted(told) == sorted(covered)


def test_a_refusal_leaves_nothing_known() -> None:
    memory, client = made()
    client.refuses = True
    page = memoryview(bytearray(8))
    with pytest.raises(StorageError, match="refused"):
        memory.add(page)
    assert page not in memory
    client.refuses = False
    memory.add(page)
    assert page in memory


def test_memory_is_kept_alive_and_let_go() -> None:
    memory, _ = made()
    owner = bytearray(100)
    memory.add(memoryview(owner))
    with pytest.raises(BufferError):
        owner.extend(b"x")
    memory.release()
    owner.extend(b"x")


def test_memory_that_cannot_be_registered_is_refused() -> None:
    memory, _ = made()
    for wrong in (memoryview(bytearray(10))[::2], memoryview(b"")):
        with pytest.raises(PageError, match="contiguous memory of at least a byte"):
            memory.add(wrong)


def test_pages_arrive_where_they_belong_directly_and_bounced() -> None:
    memory, _ = made()
    transfer = RegisteredTransfer(memory, BounceBuffer(2 * PAGE), batch_bytes=3 * PAGE)
    pool = memoryview(bytearray(8 * PAGE))
    memory.add(pool)
    inside = [pool[index * PAGE : (index + 1) * PAGE] for index in range(8)]
    pages = [page for pair in zip(inside, (memoryview(bytearray(PAGE)) for _ in range(8)), strict=True) for page in pair]
    values = [bytes([index]) * PAGE for index in range(16)]
    regions = dict(_regions(memory))
    calls: list[list[int]] = []

    def read(indices: list[int], addresses: list[int]) -> list[int]:
        calls.append(indices)
        for index, address in zip(indices, addresses, strict=True):
            _at(regions, address)[:] = values[index]
        return [100 + index for index in indices]

    answers = dict(transfer.answers(read, pages, Direction.FROM_STORE))
    assert answers == {index: 100 + index for index in range(16)}
    assert [bytes(page) for page in pages] == values
    assert [len(call) for call in calls] == [3, 3, 2, 2, 2, 2, 2]
    stored: dict[int, bytes] = {}

    def write(indices: list[int], addresses: list[int]) -> list[int]:
        stored.update({index: bytes(_at(regions, address)) for index, address in zip(indices, addresses, strict=True)})
        return [0] * len(indices)

    assert set(dict(transfer.answers(write, [page.toreadonly() for page in pages], Direction.TO_STORE)).values()) == {0}
    assert [stored[index] for index in range(16)] == values
    assert list(transfer.answers(read, [], Direction.FROM_STORE)) == []


def _regions(memory: RegisteredMemory) -> list[tuple[int, memoryview]]:
    return [(address_of(region.owner), region.owner) for region in memory._regions]


def _at(regions: dict[int, memoryview], address: int) -> memoryview:
    for start, owner in regions.items():
        if start <= address and address + PAGE <= start + owner.nbytes:
            return owner[address - start : address - start + PAGE]
    raise AssertionError("the client does not know this memory")
