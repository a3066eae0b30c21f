"""What is known of each use of a block when it happens, and how soon a block is used again, fitted with look-ahead.

A *use* is one block of one request's prompt. It ends with the next request that has the block, or never. The fit is survival
analysis in discrete time (Cox, 1972): after so long without a next use, how likely is one until a little later? A classifier
says that from what was known at the use. It is fitted to four fifths of the sessions and asked about the others, or to what was
before, as a cache would have to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from threadpoolctl import threadpool_limits

from unified_tree.controllers.workbench.traces.workload import Workload
from unified_tree.policies.density.turns import GONE_ON_SHARE, MEAN_GAPS

UNIT_TOKENS = 512
"""Blocks of a trace are taken together to so many tokens, so that all traces are as fine."""
NEVER = -1
AGE_BOUNDS_S = np.concatenate([[0.0], 2.0 ** np.arange(1, 13.01, 0.25)])
"""Ages of a use, in seconds."""
AGES = AGE_BOUNDS_S.size - 1
LEARNED_EVERY = 1000
FOLDS = 5


class Prompt(NamedTuple):
    """A request of a trace, with its prompt in units: int64 [units], equal where all up to their ends is equal."""

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    units: NDArray[np.int64]


def prompts_of(workload: Workload) -> list[Prompt]:
    """Its requests in order of arrival. A block's id is that of all up to its end, so the last one of a unit names the unit."""
    prompts = []
    for request in workload.requests:
        blocks = UNIT_TOKENS // request.block_tokens
        units = request.blocks()[blocks - 1 :: blocks]
        prompts.append(Prompt(request.arrival_s, request.prompt_tokens, request.output_tokens, units))
    return prompts


@dataclass(frozen=True, slots=True, kw_only=True)
class Uses:
    """All uses of a trace, by request and then by place in the prompt.

    Attributes:
        first: int64 [requests + 1], the first use of each request, and the number of uses.
        request, next_request: int64 [uses], the request, and the next one that has the block, or NEVER.
        known: float32 [uses, features], what is known when it happens.
        at_s: float64 [requests], when it arrives.
        session: int64 [requests], the request that began its session.
    """

    first: NDArray[np.int64]
    request: NDArray[np.int64]
    next_request: NDArray[np.int64]
    known: NDArray[np.float32]
    at_s: NDArray[np.float64]
    session: NDArray[np.int64]


def uses_of(prompts: list[Prompt]) -> Uses:
    """Cost: O(uses)."""
    last_use: dict[int, int] = {}
    begun_s: dict[int, float] = {}
    count_of: dict[int, int] = {}
    first = np.cumsum([0, *[prompt.units.size for prompt in prompts]])
    request = np.repeat(np.arange(len(prompts)), np.diff(first))
    next_request = np.full(request.size, NEVER)
    session = np.arange(len(prompts))
    of_request, of_block = np.full((len(prompts), 8), -1.0), np.zeros((request.size, 4))
    for i, prompt in enumerate(prompts):
        units = prompt.units.tolist()
        shared = next((at for at, unit in enumerate(units) if unit not in last_use), len(units))
        before = int(request[last_use[units[shared - 1]]]) if shared else NEVER
        of_request[i, :4] = 0, prompt.prompt_tokens, prompt.output_tokens, shared
        if before != NEVER and GONE_ON_SHARE * shared >= prompts[before].units.size:
            session[i] = session[before]
            turns, gap = of_request[before, 0] + 1, prompt.arrival_s - prompts[before].arrival_s
            mean = gap if turns == 1 else of_request[before, 6] + (gap - of_request[before, 6]) / min(turns, MEAN_GAPS)
            growth = prompt.prompt_tokens - prompts[before].prompt_tokens
            of_request[i] = (*(turns, *of_request[i, 1:4]), gap, of_request[before, 4], mean, growth)
        for at, unit in enumerate(units):
            use, seen = int(first[i]) + at, last_use.get(unit)
            if seen is not None:
                next_request[seen] = i
            last_use[unit] = use
            count_of[unit] = count_of.get(unit, 0) + 1
            age_s = prompt.arrival_s - begun_s.setdefault(unit, prompt.arrival_s)
            of_block[use] = at, at / len(units), count_of[unit], age_s
    known = np.concatenate([of_request[request], of_block], axis=1).astype(np.float32)
    at_s = np.array([prompt.arrival_s for prompt in prompts])
    return Uses(first=first, request=request, next_request=next_request, known=known, at_s=at_s, session=session)


def foreseen_chances(uses: Uses) -> NDArray[np.float32]:
    """How likely a next use is within each age, if there was none before, by what the whole trace says of other sessions;
    float32 [uses, ages].
    """
    fold = np.random.default_rng(0).permutation(uses.at_s.size)[uses.session] % FOLDS
    fold_of_use = fold[uses.request]
    found = np.zeros((uses.request.size, AGES), np.float32)
    for each in range(FOLDS):
        mine = np.flatnonzero(fold_of_use == each)
        found[mine] = _asked(_fitted(uses, fold_of_use != each, uses.at_s.size), uses.known[mine])
    return found


def learned_chances(uses: Uses, every: int = LEARNED_EVERY) -> NDArray[np.float32]:
    """The same by what is known when the requests come: anew after so many of them, from all that came before."""
    found = np.zeros((uses.request.size, AGES), np.float32)
    for begin in range(every, uses.at_s.size, every):
        end = min(uses.at_s.size, begin + every)
        mine = np.arange(uses.first[begin], uses.first[end])
        found[mine] = _asked(_fitted(uses, uses.request < begin, begin), uses.known[mine])
    return found


def _fitted(uses: Uses, may_see: NDArray[np.bool_], now: int) -> HistGradientBoostingClassifier | None:
    """What some uses tell shortly before a request: those that are not over count up to there. None if none is over.

    Uses of one request with the same next one are one sample.
    """
    seen = np.flatnonzero(may_see)
    next_of_seen = np.where(uses.next_request[seen] < now, uses.next_request[seen], NEVER)
    is_first = np.ones(seen.size, bool)
    is_first[1:] = (np.diff(uses.request[seen]) != 0) | (np.diff(next_of_seen) != 0)
    begin = np.flatnonzero(is_first)
    weight = np.diff(np.append(begin, seen.size))
    chosen = begin + (np.random.default_rng(1).random(begin.size) * weight).astype(np.int64)
    sample, after = seen[chosen], next_of_seen[chosen]
    is_over = after != NEVER
    now_s = uses.at_s[min(now, uses.at_s.size - 1)]
    waited_s = np.where(is_over, uses.at_s[after], now_s) - uses.at_s[uses.request[sample]]
    age = np.searchsorted(AGE_BOUNDS_S, waited_s, side="right") - 1
    rows, ages = [], []
    for each in range(AGES):
        at_risk = np.flatnonzero((age > each) | ((age == each) & is_over))
        rows.append(at_risk)
        ages.append(np.full(at_risk.size, each))
    row, of_age = np.concatenate(rows), np.concatenate(ages)
    is_end = (age[row] == of_age) & is_over[row]
    if not is_end.any():
        return None
    model = HistGradientBoostingClassifier(
        max_iter=150, learning_rate=0.06, max_leaf_nodes=15, min_samples_leaf=300, early_stopping=False, random_state=0
    )
    inputs = np.column_stack([uses.known[sample[row]], of_age]).astype(np.float32)
    with threadpool_limits(1):  # threads that wait for one another cost far more than they gain where others work
        model.fit(inputs, is_end, sample_weight=np.sqrt(weight[row]))
    return model


def _asked(model: HistGradientBoostingClassifier | None, known: NDArray[np.float32]) -> NDArray[np.float32]:
    """What a model says of uses at each age: float32 [uses, ages]."""
    found = np.zeros((len(known), AGES), np.float32)
    if model is not None and len(known):
        with threadpool_limits(1):
            for each in range(AGES):
                found[:, each] = model.predict_proba(np.column_stack([known, np.full(len(known), each, np.float32)]))[:, 1]
    return found


def worth(chance: NDArray[np.float32]) -> NDArray[np.float32]:
    """What keeping a block is worth from the beginning of each age: the chance of a next use until some later age, for the time
    for which it is kept until then, at the age for which that is most (the index of Gittins, 1979); [uses, ages].
    """
    unused = np.cumprod(1.0 - chance, axis=1, dtype=np.float64)
    unused = np.column_stack([np.ones(len(unused)), unused])
    kept_s = np.cumsum((unused[:, :-1] + unused[:, 1:]) / 2 * np.diff(AGE_BOUNDS_S), axis=1)
    kept_s = np.column_stack([np.zeros(len(kept_s)), kept_s])
    most = np.zeros(chance.shape, np.float32)
    for begin in range(chance.shape[1]):
        for end in range(begin + 1, chance.shape[1] + 1):
            gain = (unused[:, begin] - unused[:, end]) / (kept_s[:, end] - kept_s[:, begin] + 1e-9)
            np.maximum(most[:, begin], gain, out=most[:, begin], casting="same_kind")
    return most
