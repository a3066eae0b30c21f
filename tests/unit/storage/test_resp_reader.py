"""Answers of a Redis server in pieces of any size, and what is no answer."""

from __future__ import annotations

import random

import pytest

from unified_tree.controllers.storage.redis.resp_connection import command
from unified_tree.controllers.storage.redis.resp_reader import LINE_BYTES, Answer, RespError, RespReader, WrongLength
from unified_tree.errors import StorageError


def reader(data: bytes, choose: random.Random | None = None) -> RespReader:
    """Gives the bytes in random pieces, then hangs up."""
    position = 0

    def receive(target: memoryview) -> int:
        nonlocal position
        assert target.nbytes, "asked for nothing, which looks like the end"
        count = min(target.nbytes, len(data) - position, choose.randint(1, 5000) if choose else len(data))
        target[:count] = data[position : position + count]
        position += count
        return count

    return RespReader(receive)


def test_each_kind() -> None:
    data = b"+OK\r\n:-7\r\n-ERR no\r\n$5\r\na\r\nbc\r\n$-1\r\n$0\r\n\r\n*2\r\n:1\r\n*1\r\n$1\r\nx\r\n*-1\r\n*0\r\n"
    got = reader(data)
    expected: list[Answer] = [b"OK", -7, RespError("ERR no"), b"a\r\nbc", None, b"", [1, [b"x"]], None, []]
    assert [got.read() for _ in expected] == expected
    assert got.is_empty


def test_pages_are_filled_whatever_the_pieces() -> None:
    choose = random.Random(8)
    for _ in range(100):
        sizes = [choose.choice((1, 10, 4095, 4096, 4097, 70_000)) for _ in range(6)]
        values = [choose.randbytes(size) for size in sizes]
        data = b"".join(b"$%d\r\n%b\r\n:5\r\n" % (len(value), value) for value in values)
        got = reader(data, choose)
        for value in values:
            page = memoryview(bytearray(choose.choice((len(value), len(value), len(value) + 1, 4096))))
            before = bytes(page)
            answer = got.read(page)
            if page.nbytes == len(value):
                assert answer is page and page == value
            else:
                assert answer == WrongLength(len(value)) and page == before
            assert got.read() == 5
        assert got.is_empty


def test_a_page_of_any_item_is_filled() -> None:
    page = memoryview(bytearray(16)).cast("q", (2, 1))
    assert reader(b"$16\r\n" + bytes(range(16)) + b"\r\n").read(page) is page
    assert page.tobytes() == bytes(range(16))


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n",
        b"$x\r\n",
        b"$-2\r\n",
        b"$99999999999\r\n",
        b"$3\r\nabcd\r\n",
        b"*99999999\r\n",
        b"*1\r\n" * 5000,
        b"\r\n",
        b"+" + b"x" * (LINE_BYTES + 10),
        b"$3\r\nab",
        b"+OK",
        b"",
        b":1.5\r\n",
    ],
)
def test_what_is_no_answer_is_not_believed(data: bytes) -> None:
    with pytest.raises(StorageError, match="redis: "):
        reader(data).read()


def test_a_string_too_long_to_keep_is_still_a_page() -> None:
    size = 2 << 20
    page = memoryview(bytearray(size))
    data = b"$%d\r\n%b\r\n" % (size, bytes(size))
    assert reader(data).read(page) is page
    with pytest.raises(StorageError, match="is not to be believed"):
        reader(data).read()


def test_random_bytes_never_hang_and_never_raise_anything_else() -> None:
    choose = random.Random(4)
    for _ in range(2000):
        data = bytes(choose.choice(b"*$:+-0123456789\r\nxO") for _ in range(choose.randrange(60)))
        got = reader(data, choose)
        try:
            for _ in range(100):
                got.read(memoryview(bytearray(choose.randint(1, 20))))
        except StorageError:
            continue
        raise AssertionError("more answers than bytes")


def test_a_command_leaves_pages_where_they_are() -> None:
    page = memoryview(bytearray(b"page"))
    pieces = command(b"SET", b"key", page, b"NX")
    assert any(piece is page for piece in pieces)
    assert b"".join(pieces) == b"*4\r\n$3\r\nSET\r\n$3\r\nkey\r\n$4\r\npage\r\n$2\r\nNX\r\n"
    assert b"".join(command(b"PING")) == b"*1\r\n$4\r\nPING\r\n"
