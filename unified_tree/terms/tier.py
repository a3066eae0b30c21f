"""Where pages live, and the ids of nodes and pages."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NewType

NodeId = NewType("NodeId", int)
PageId = NewType("PageId", int)
PAGE_ID_BYTES: Final = 8
ROOT_ID = NodeId(0)
"""The id in every boundary of length zero, whatever its namespace."""


class Tier(IntEnum):
    """Where pages live. Nodes hold DEVICE and HOST values; `STORAGE` (L3) is addressed by content, never by node."""

    DEVICE = 0
    HOST = 1
    STORAGE = 2


DEVICE: Final = Tier.DEVICE
HOST: Final = Tier.HOST
"""Members of an Enum are looked up by a Python function, and asked by one whether they are true; this is neither."""


def opposite(tier: Tier) -> Tier:
    """HOST for DEVICE, and DEVICE for HOST."""
    return DEVICE if tier is HOST else HOST
