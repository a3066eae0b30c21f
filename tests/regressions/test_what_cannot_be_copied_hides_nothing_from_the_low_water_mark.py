"""The search for the coldest values without a copy gave up after 64, copied and locked ones included: nothing was backed up
any more."""

from __future__ import annotations

from grove import Grove
from kinds import FULL, MAMBA


def test_copied_and_locked_values_are_not_looked_at() -> None:
    grove = Grove([FULL])
    grove.tree.pool("full").copied_first = True
    texts = [f"a{chr(0x100 + i)}" for i in range(30)]
    for text in texts:
        grove.put(text)
    for text in texts[:10]:
        grove.backup(text)
    receipts = [grove.lock(text) for text in texts[10:20]]
    found, place = grove.tree.transfers.coldest_boundaries("full", 3, look_at=3)
    assert [grove.tree.key_of(boundary).data for boundary in found] == [
        grove.tree.key_of(grove.match(text, touch=False).device).data for text in texts[20:23]
    ]
    for receipt in receipts:
        receipt.release()
    more, _ = grove.tree.transfers.coldest_boundaries("full", 100, look_at=100, after=place)
    assert len(more) == 7


def test_a_look_goes_on_where_the_last_one_got() -> None:
    grove = Grove([FULL, MAMBA])
    for i in range(20):
        grove.put(f"a{chr(0x100 + i)}bc", [2, 4] if i % 2 else [2])
    seen, place, looks = [], None, 0
    while True:
        found, place = grove.tree.transfers.coldest_boundaries("mamba", 100, look_at=1, after=place)
        seen += found
        looks += 1
        if place is None:
            break
    assert len(seen) == len(set(seen)) == grove.tree.pool("mamba").used_pages
    assert looks >= len(seen)
