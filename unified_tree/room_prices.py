"""What room in each pool is worth: the prices at which what is kept just fits.

A session is resumed where its path, a window and a state are all there, so they are paid together. Prices follow what the
remembered visits would hold at them (a sub-gradient of the same Lagrangian that bounds the best possible hits, see
docs/optimum.md, with what is foreseen in the place of what will be).
"""

from __future__ import annotations

from math import log2
from typing import TYPE_CHECKING, Final

import numpy as np

from unified_tree.node import Tier

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from unified_tree.pool import Pool
    from unified_tree.state import TreeState
    from unified_tree.visit import Visit
    from unified_tree.visit_memory import Held


FIRST_STEPS: Final = 40
"""So many passes find the first prices."""
STEPS: Final = 20
STEP: Final = 0.5
LEAST_STEP: Final = 0.25
MOST_STEP: Final = 2.0
LEAST_ASKED: Final = 1e-6
FILL_STEP: Final = 0.1
"""By how many octaves the room that is counted on changes, if all victims went early or none."""
EARLY_SHARE: Final = 0.5
LEAST_FILL: Final = 0.5
MOST_FILL: Final = 1.25
LOG_START: Final = -12.0
LOG_LEAST: Final = -16.0
LOG_MOST: Final = 8.0


class RoomPrices:
    """The prices of one tier's pools, in hits of a token a page and visit.

    The room of a pool is what no request holds now. As far as most victims still go before keeping them stops to pay, less is
    counted on, and more where few do.
    """

    def __init__(self, state: TreeState, tier: Tier) -> None:
        self._state = state
        self._tier = tier
        self._is_set = False
        self._has_boundaries = bool(state.windows or state.points)
        self._logs = [LOG_START] * len(state.components)
        self._prices = [0.0] * len(state.components)
        self._fill = [1.0] * len(state.components)
        self._early = [0] * len(state.components)
        self._late = [0] * len(state.components)

    def cost(self, visit: Visit) -> float:
        """What keeping all that a visit left costs a visit, in hits of it. Cost: O(components)."""
        state, tier, prices = self._state, self._tier, self._prices
        pages = 0.0
        for i in state.owned_paths_on(tier):
            pages += prices[i] * visit.room / state.page_size
        for i, window in state.owned_windows_on(tier):
            pages += prices[i] * state.pages_of(min(window, visit.end))
        for i in state.owned_points_on(tier):
            pages += prices[i]
        return pages / max(1, visit.room)

    def evicted(self, component: int, *, is_early: bool) -> None:
        """A victim went before keeping it stopped to pay, or after. Cost: O(1)."""
        if is_early:
            self._early[component] += 1
        else:
            self._late[component] += 1

    def _learn_fill(self) -> None:
        """Where most victims go early, prices were made for more room than there is."""
        for i in range(len(self._fill)):
            early, late = self._early[i], self._late[i]
            if early + late:
                fill = self._fill[i] * 2.0 ** (FILL_STEP * (EARLY_SHARE - early / (early + late)))
                self._fill[i] = min(MOST_FILL, max(LEAST_FILL, fill))
            self._early[i] = self._late[i] = 0

    def revise(self, sessions: Held, forks: Held, resumed: list[float]) -> None:
        """Move each price towards the lowest at which what is kept fits: up at once, down step by step.

        A price that is too low floods a pool with what nobody needs, at one that is too high what fits stays all the same.

        Args:
            resumed: how often sessions were resumed from their last boundary, the last but one, and so on.

        Cost: `STEPS` passes in numpy over the remembered visits for each pool.
        """
        self._learn_fill()
        takes = [take for take in self._takes(sessions, forks) if take.room > 0]
        most = max(resumed)
        factors = [1.0, *(most / count for count in resumed)]
        logs = self._logs
        for step in range(STEPS if self._is_set else FIRST_STEPS):
            self._ask(takes, sessions, forks, factors)
            is_short = False
            for take in takes:
                wanted = STEP * log2(max(take.asked, LEAST_ASKED) / take.room)
                if wanted > 0:
                    is_short = True
                elif step and self._is_set:  # down once, and then only up, to where all fits
                    continue
                change = min(MOST_STEP, max(LEAST_STEP, wanted)) if wanted > 0 else max(-MOST_STEP, wanted)
                logs[take.component] = min(LOG_MOST, max(LOG_LEAST, logs[take.component] + change))
            if step and self._is_set and not is_short:
                break
        self._is_set = True
        for take in takes:
            self._prices[take.component] = 2.0 ** logs[take.component]

    def _ask(self, takes: list[Take], sessions: Held, forks: Held, factors: list[float]) -> None:
        """How much of each pool would be held at the present prices."""
        cost, fork_cost = np.zeros(sessions.count), np.zeros(forks.count)
        for take in takes:
            price = 2.0 ** self._logs[take.component]
            cost += price * take.sessions
            fork_cost += price * take.forks
        times = sessions.times(cost / sessions.room, factors if self._has_boundaries else factors[:1])
        (fork_time,) = forks.times(fork_cost / forks.room, factors[:1])
        for take in takes:
            if take.is_path:
                asked = float(take.sessions @ times[0])
            else:
                asked = float(take.forks @ fork_time)
                for rank in range(len(factors) - 1):
                    asked += float(np.where(sessions.saves > rank, take.sessions, 0.0) @ times[rank + 1])
            take.asked = asked / max(1, sessions.count)

    def _takes(self, sessions: Held, forks: Held) -> list[Take]:
        """What visits take of each pool. Sessions keep the paths of forks."""
        state, tier, page = self._state, self._tier, self._state.page_size
        paths = [(i, True, sessions.room / page, forks.room / page) for i in state.owned_paths_on(tier)]
        windows = [
            (i, False, np.minimum(window, sessions.end) / page, np.minimum(window, forks.end) / page)
            for i, window in state.owned_windows_on(tier)
        ]
        points = [(i, False, np.ones(sessions.count), np.ones(forks.count)) for i in state.owned_points_on(tier)]
        return [Take(*take, self._room(state.pools(tier)[take[0]])) for take in (*paths, *windows, *points)]

    def _room(self, pool: Pool) -> float:
        """A pool's pages for what no request holds; 0 for one without bound."""
        page_count = pool.ledger.page_count
        if page_count is None:
            return 0.0
        return self._fill[self._state.index[pool.component.name]] * max(1, page_count - pool.protected_pages)


class Take:
    """What the remembered visits take of one pool.

    Attributes:
        sessions, forks: pages of each visit, shape [count].
        room: pages there are.
        asked: pages that would be held.
    """

    def __init__(
        self, component: int, is_path: bool, sessions: NDArray[np.float64], forks: NDArray[np.float64], room: float
    ) -> None:
        self.component = component
        self.is_path = is_path
        self.sessions = sessions
        self.forks = forks
        self.room = room
        self.asked = 0.0
