"""The collection: all exhibits, by hall."""

from __future__ import annotations

import draft_exhibits
import grid_exhibits
import namespace_exhibits
import pressure_exhibits
import state_exhibits
import tier_exhibits
import window_exhibits
from exhibit import Exhibit

HALLS = (
    window_exhibits,
    state_exhibits,
    grid_exhibits,
    draft_exhibits,
    pressure_exhibits,
    tier_exhibits,
    namespace_exhibits,
)
EXHIBITS: tuple[Exhibit, ...] = tuple(exhibit for hall in HALLS for exhibit in hall.EXHIBITS)
