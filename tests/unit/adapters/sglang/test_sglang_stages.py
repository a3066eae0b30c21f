"""The stages of a pipeline have one group, and as many host pages."""

from __future__ import annotations

from typing import Any

import pytest

from unified_tree.controllers.adapters.sglang.assembly import least_of_all, over_stages
from unified_tree.terms.errors import ConfigurationError


class Ranks:
    """A process group: the numbers of its ranks."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = numbers

    def size(self) -> int:
        return len(self.numbers)


@pytest.mark.parametrize("own", range(8))
def test_a_group_over_stages_has_the_peers_of_each(own: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two stages of four ranks, of which two neighbours serve the same requests."""
    stage, place = divmod(own, 4)
    first = place // 2 * 2
    monkeypatch.setattr("torch.distributed.get_rank", lambda: own)
    monkeypatch.setattr("torch.distributed.get_process_group_ranks", lambda group: list(group.numbers))
    monkeypatch.setattr("torch.distributed.new_group", lambda ranks, **_: Ranks(*ranks))
    peers, stages = Ranks(4 * stage + first, 4 * stage + first + 1), Ranks(place, 4 + place)
    found: Any = over_stages(peers, stages)  # type: ignore[arg-type]
    assert found.numbers == (first, first + 1, 4 + first, 5 + first)


def gathered(monkeypatch: pytest.MonkeyPatch, other: dict[str, int]) -> None:
    """Another rank counts so many pages."""

    def gather(found: list[Any], mine: dict[str, int], group: Ranks) -> None:
        assert group.size() == 2
        found[:] = [mine, other]

    monkeypatch.setattr("torch.distributed.all_gather_object", gather)


def test_all_stages_have_as_many_host_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered(monkeypatch, {"full": 90, "swa": 50})
    group: Any = Ranks(0, 1)
    assert least_of_all(group, {"full": 100, "swa": 40}) == {"full": 90, "swa": 40}


def test_stages_of_other_kinds_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gathered(monkeypatch, {"full": 90, "draft": 90})
    group: Any = Ranks(0, 1)
    with pytest.raises(ConfigurationError, match="layers of the same kinds in each pipeline stage"):
        least_of_all(group, {"full": 100})
