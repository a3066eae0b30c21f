"""Chains, format headers, seals and restore-point records."""

from __future__ import annotations

import pickle
from dataclasses import replace
from hashlib import sha256
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unified_tree import Key
from unified_tree.controllers.pools import HostLayout, mha_format
from unified_tree.controllers.storage import (
    FormatHeader,
    KeyChain,
    RestorePoint,
    attested_pages,
    is_intact,
    pool_keys,
    seal,
)
from unified_tree.controllers.storage.digests import Digests
from unified_tree.declare.page_format import WHOLE, Shard
from unified_tree.terms.errors import ConfigurationError, InvalidKeyError, PageError

CHAIN = KeyChain(page_size=4, weights_version="v1")
TOKENS = st.lists(st.integers(0, 3), max_size=24)


@given(TOKENS, TOKENS, st.booleans())
def test_equal_digests_mean_equal_prefixes(one: list[int], other: list[int], bigram: bool) -> None:
    first, second = Key(one, bigram=bigram), Key(other, bigram=bigram)
    for page, (a, b) in enumerate(zip(CHAIN.digests(first), CHAIN.digests(second), strict=False)):
        end = (page + 1) * 4
        assert (a == b) == (
            first.prefix(end).data[: end * first.width_bytes] == second.prefix(end).data[: end * first.width_bytes]
        )


@given(TOKENS, st.booleans(), st.data())
def test_a_known_parent_gives_the_same_digests(tokens: list[int], bigram: bool, data: st.DataObject) -> None:
    key = Key(tokens, "tenant", bigram=bigram)
    every = [CHAIN.root("tenant", bigram=bigram), *CHAIN.digests(key)]
    start = data.draw(st.integers(0, len(every) - 1))
    assert CHAIN.digests(key, start_page=start, parent=every[start]) == every[start + 1 :]


def test_roots_differ_in_everything() -> None:
    roots = [
        KeyChain(page_size=size, weights_version=version).root(namespace, bigram=bigram)
        for size in (4, 41)
        for version in ("", "1", "v")
        for namespace in ("", "1", "v", "1v")
        for bigram in (False, True)
    ]
    assert len(set(roots)) == len(roots)


def test_the_encoding_does_not_change() -> None:
    [digest] = KeyChain(page_size=2, weights_version="w").digests(Key([1, 2]))
    fields = (b"unified_tree prefix chain 1", b"plain", b"2", b"", b"w")
    root = sha256(b"".join(len(field).to_bytes(8, "little") + field for field in fields)).digest()
    assert digest == sha256(root + np.array([1, 2], "<i8").tobytes()).digest()
    assert pool_keys([digest], bytes(32)) == [sha256(digest + bytes(32)).digest()]


def test_wrong_parents_and_tokens_are_refused() -> None:
    key = Key(range(8))
    with pytest.raises(InvalidKeyError, match="the parent of page 1"):
        CHAIN.digests(key, start_page=1)
    with pytest.raises(InvalidKeyError, match="root of its namespace"):
        CHAIN.digests(key, parent=bytes(32))
    with pytest.raises(InvalidKeyError, match="start_page 3"):
        CHAIN.digests(key, start_page=3, parent=bytes(32))
    with pytest.raises(InvalidKeyError, match="-1"):
        CHAIN.digests(Key([0, 0, 0, -1]))
    with pytest.raises(ConfigurationError):
        KeyChain(page_size=0, weights_version="")


def test_a_format_differs_in_every_field() -> None:
    page = mha_format("full", layer_ids=(0, 1), page_size=4, kv_heads=2, head_dim=8, shard=WHOLE)
    header = FormatHeader(model="m", format=page, layout=HostLayout.PAGE_FIRST, page_size=4)
    k, v = page.parts
    other_parts = [(v, k), (k,), (k, replace(v, dtype="float16")), (k, replace(v, shape=(8, 2))), (k, replace(v, name="w"))]
    others = [
        replace(header, model="n"),
        replace(header, format=replace(page, component="draft")),
        replace(header, format=replace(page, layer_ids=(0, 2))),
        *(replace(header, format=replace(page, parts=parts)) for parts in other_parts),
        replace(header, layout=HostLayout.PAGE_FIRST_DIRECT),
        replace(header, page_size=8),
        replace(header, layout=None),
        replace(header, beside="other"),
        replace(header, format=replace(page, slots_per_page=8)),
        replace(header, format=replace(page, shard=Shard(0, 2))),
        replace(header, format=replace(page, shard=Shard(1, 2))),
    ]
    assert len({each.digest for each in [header, *others]}) == len(others) + 1
    with pytest.raises(ConfigurationError, match="not stated which shard"):
        replace(header, format=replace(page, shard=None))
    for index, count in ((2, 2), (-1, 2), (0, 0), (True, 2), (0, 2.0)):
        with pytest.raises(ConfigurationError, match="a shard is part"):
            Shard(index, count)  # type: ignore[arg-type]


def test_every_flipped_bit_and_another_key_break_a_seal() -> None:
    page, key = bytearray(range(100)) + bytearray(64), sha256(b"1").digest()
    seal(memoryview(page), key)
    assert is_intact(memoryview(page), key)
    assert not is_intact(memoryview(page), sha256(b"2").digest())
    for bit in range(len(page) * 8):
        page[bit // 8] ^= 1 << bit % 8
        assert not is_intact(memoryview(page), key)
        page[bit // 8] ^= 1 << bit % 8
    for size in range(len(page)):
        assert not is_intact(memoryview(page)[:size], key)
    assert not is_intact(memoryview(bytes(164)), bytes(32))
    with pytest.raises(PageError, match="cannot be sealed"):
        seal(memoryview(bytearray(64)), key)


@given(st.integers(1, 100), st.dictionaries(st.binary(min_size=32, max_size=32), st.integers(1, 100), max_size=4))
def test_records_round_trip_and_have_one_encoding(length: int, attested: dict[bytes, int]) -> None:
    record = RestorePoint(
        length_pages=length, chain_digest=bytes(range(32)), attested={d: min(n, length) for d, n in attested.items()}
    )
    data = record.encode(256)
    assert RestorePoint.decode(data) == record
    for index in range(256):
        changed = bytearray(data)
        changed[index] ^= 0x41
        other = RestorePoint.decode(bytes(changed))
        assert other is None or (other != record and other.encode(256) == changed)


def test_what_is_no_record_is_refused() -> None:
    record = RestorePoint(length_pages=2, chain_digest=bytes(32), attested={bytes(32): 2})
    assert all(RestorePoint.decode(record.encode(96)[:size]) is None for size in range(96))
    assert RestorePoint.decode(bytes(128)) is None
    with pytest.raises(ConfigurationError, match="more than 64"):
        record.encode(64)
    with pytest.raises(ConfigurationError, match="cannot attest 3"):
        RestorePoint(length_pages=2, chain_digest=bytes(32), attested={bytes(32): 3})


def test_a_record_of_another_boundary_attests_nothing() -> None:
    chain = CHAIN.digests(Key(range(12)))
    good = RestorePoint(length_pages=2, chain_digest=chain[1], attested={bytes(32): 2})
    assert attested_pages({1: good, 2: good}, chain, bytes(32)).tolist() == [0, 2, 0]
    assert attested_pages({1: replace(good, chain_digest=chain[0])}, chain, bytes(32)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("count", [0, 1, 2, 33])
def test_they_are_what_a_list_of_them_is(count: int) -> None:
    draw = Random(count)
    listed = [draw.randbytes(32) for _ in range(count)]
    digests = Digests(listed)
    assert len(digests) == count and list(digests) == listed
    assert [digests[at] for at in range(-count, count)] == listed + listed
    for _ in range(200):
        begin, end = (draw.choice([None, draw.randrange(-40, 40)]) for _ in range(2))
        piece = digests[begin:end]
        assert list(piece) == listed[begin:end] and piece == Digests(listed[begin:end])
    others = [draw.randbytes(32) for _ in range(3)]
    assert list(digests.followed_by(others)) == listed + others
    assert digests.followed_by(Digests(others)) == Digests(listed + others)
    assert list(digests) == listed, "these never change"


@pytest.mark.parametrize("index", [-3, 2, 1 << 40])
def test_a_page_that_is_not_there_has_none(index: int) -> None:
    with pytest.raises(IndexError, match="2 digests"):
        Digests([bytes(32)] * 2)[index]


def test_a_piece_has_no_gaps() -> None:
    with pytest.raises(ValueError, match="steps of 2"):
        Digests([bytes(32)] * 2)[::2]


def test_equal_ones_are_equal_and_nothing_else_is() -> None:
    digests = Digests([bytes(32)])
    assert digests == Digests([bytes(32)]) and hash(digests) == hash(Digests([bytes(32)]))
    assert digests != Digests() and digests != [bytes(32)]


def test_they_go_to_other_processes() -> None:
    digests = Digests([bytes([page]) * 32 for page in range(5)])
    assert pickle.loads(pickle.dumps(digests)) == digests
