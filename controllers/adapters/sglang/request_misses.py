"""The misses of SGLang's requests: why the tokens of each prompt had to be computed, booked once a request.

SGLang matches a waiting request any number of times. What the last match before its admission has found decides, so that is
noted at the request itself; it is booked when the request has its first slots and nothing of its batch has run yet. A request
that was taken back and computes its prompt again is not booked again: hits and misses together are the prompts' tokens.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from unified_tree.controllers.cache.lease_tokens import UNSAVED
from unified_tree.controllers.cache.miss_ledger import MissLedger
from unified_tree.controllers.cache.tenant_stats import TenantCounters
from unified_tree.controllers.counters.observers import OBSERVER_FAILED, AdmittedRequest
from unified_tree.inputs.printable import traceback_of
from unified_tree.misses.causes import LAST_TOKEN, LOAD_REFUSED, Miss
from unified_tree.misses.miss_cause import MissCause

if TYPE_CHECKING:
    from collections.abc import Hashable

    from unified_tree.controllers.adapters.sglang.metrics import MissMetrics
    from unified_tree.controllers.adapters.sglang.request_keys import RequestKeys
    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.misses.causes import Flight, StoreLoss
    from unified_tree.terms.results import Boundary, Match
    from unified_tree.tree import UnifiedTree

LOG = logging.getLogger(__name__)
ACCOUNT: Final = "unified_tree_misses"
"""The attribute of SGLang's requests that holds theirs."""
TOO_DEAR: Final[tuple[int, str | None]] = (LOAD_REFUSED, "cost")
NOT_LOOKED_UP: Final = "not looked up"
"""The detail of tokens whose probabilities are asked for, and of those that SGLang keeps out of its cache."""


class Account:
    """One request's.

    Attributes:
        found: its last match; None once it is booked.
        limit: how many tokens that match looked at.
        unloaded: why what the host has was not loaded, if it was not.
        admitted: as the observers were told of it; None if there are none.
        flight: the prompt that it computes; None if nobody can find it.
        known: how far the tree knew the prompt when it was booked.
        due: where a state should be saved; None for nowhere.
    """

    __slots__ = ("admitted", "due", "flight", "found", "known", "limit", "unloaded")

    def __init__(self) -> None:
        self.found: Match | None = None
        self.limit = 0
        self.admitted: AdmittedRequest | None = None
        self.unloaded: tuple[int, str | None] = TOO_DEAR
        self.flight: Flight | None = None
        self.known = 0
        self.due: int | None = None


class MissFigures:
    """What was booked so far.

    Attributes:
        requests: that were admitted.
        prompt_tokens: of them.
        hit_tokens: of these, those that were not computed.
        misses: the others by cause, in words, with what more is known of them.
    """

    __slots__ = ("hit_tokens", "misses", "prompt_tokens", "requests")

    def __init__(self, requests: int, prompt_tokens: int, hit_tokens: int, misses: Counter[str]) -> None:
        self.requests = requests
        self.prompt_tokens = prompt_tokens
        self.hit_tokens = hit_tokens
        self.misses = misses


class RequestMisses:
    """Books the misses of the requests of one cache.

    Args:
        tree: its first.
        keys: makes the requests' keys.
        counters: count the requests, and have the watcher who is told of them.
        metrics: count the same; None without.

    Attributes:
        ledger: of all trees.
        tenants: the requests of all trees by group of namespaces.
    """

    def __init__(
        self, tree: UnifiedTree, keys: RequestKeys, counters: CacheCounters, metrics: MissMetrics | None = None
    ) -> None:
        self._keys = keys
        self._counters = counters
        self._metrics = metrics
        self._given_up: dict[Hashable, tuple[int, StoreLoss | None]] = {}
        self._tree, self._forgotten = tree, 0
        self.ledger = MissLedger(tree.state)
        self.tenants = TenantCounters(tree.state, counters)

    def renew(self, tree: UnifiedTree) -> None:
        """The cache was emptied, and this is its tree now. What was evicted before is not remembered."""
        self._given_up.clear()
        self._tree, self._forgotten = tree, 0
        self.ledger.renew(tree.state)
        self.tenants.follow(tree.state)

    def matched(self, req: Any, found: Match, limit: int) -> None:
        """A waiting request has found this among its first `limit` tokens. Cost: O(1)."""
        account: Account | None = getattr(req, ACCOUNT, None)
        if account is None:
            if req is None:
                return
            account = Account()
            setattr(req, ACCOUNT, account)
        elif account.found is None:
            return
        account.found, account.limit, account.unloaded = found, limit, TOO_DEAR

    def not_loaded(self, req: Any, unloaded: tuple[int, str | None]) -> None:
        """What the host has for a request cannot be loaded: a cause and a detail."""
        account: Account | None = getattr(req, ACCOUNT, None)
        if account is not None:
            account.unloaded = unloaded

    def given_up(self, request: Hashable, tokens: int, loss: StoreLoss | None = None) -> None:
        """A request waits no longer, while a store was about to bring so long a prefix; 0 for none.

        Args:
            loss: what a fault of the store kept from its prompt; None for nothing.
        """
        if tokens or loss is not None:
            self._given_up[request] = tokens, loss

    def cancelled(self, request: Hashable) -> None:
        """A waiting request is gone. No effect for any other."""
        self._given_up.pop(request, None)

    def admitted(self, req: Any) -> None:
        """A request has slots for what it is about to compute. Books it the first time. Cost: O(prompt), to read its tokens."""
        account: Account | None = getattr(req, ACCOUNT, None)
        if account is None or account.found is None:
            return
        found, ledger, counters = account.found, self.ledger, self._counters
        account.found = None
        tokens = req.full_untruncated_fill_ids
        prompt: int = len(tokens)
        resumed: int = req.prefix_len
        in_store, loss = 0, None
        if self._given_up:
            in_store, loss = self._given_up.pop(req.cache_request_handle, (0, None))
        key = self._keys.key(tokens, min(account.limit + 1, prompt), req.extra_key, req.cache_salt)
        count = key.length
        parts: list[Miss] = []
        if count:
            booked = ledger.book(key, key.namespace, count, found, resumed, account.unloaded, in_store, loss)
            if self._metrics is not None or counters.observers.all:
                parts = ledger.parts(booked, count, resumed)
            account.known = max(found.known.length, resumed)
            account.flight = ledger.in_flight.begin(key, count, account.known)
            if found.save_at and self._tree.state.layout.required_points:
                account.due = found.save_at[0]
        if count < prompt:
            rest = Miss(LAST_TOKEN, count, prompt, None, NOT_LOOKED_UP if account.limit + 1 < prompt else None)
            ledger.add(rest)
            parts.append(rest)
        loaded = max(0, resumed - found.device.length)
        counters.requests += 1
        counters.prompt_tokens += prompt
        counters.hit_tokens += resumed
        counters.host_hit_tokens += loaded
        if self.tenants.is_on:
            self.tenants.admitted(key.namespace, prompt, resumed)
        if counters.observers.all:
            account.admitted = AdmittedRequest(prompt, resumed, loaded, parts)
            counters.observers.tell("acquired", account.admitted, key)
        if self._metrics is not None:
            self._meter(self._metrics, prompt, resumed, parts)

    def _meter(self, metrics: MissMetrics, prompt: int, resumed: int, parts: list[Miss]) -> None:
        """Count a request among SGLang's metrics, until that fails: its processes share them by files."""
        ghosts = self._tree.state.ghosts
        forgotten = 0 if ghosts is None else ghosts.forgotten
        before, self._forgotten = self._forgotten, forgotten
        try:
            metrics.count(prompt, resumed, parts, forgotten - before)
        except Exception as error:
            self._metrics = None
            LOG.error("SGLang's metrics of misses failed, and count no more requests: %s", traceback_of(error))
            self._counters.count_drop(OBSERVER_FAILED)

    def published(self, req: Any, up_to: int) -> None:
        """A request has computed `up_to` tokens, and the tree has it up to `req.last_node`. Cost: O(1)."""
        account: Account | None = getattr(req, ACCOUNT, None)
        if account is None:
            return
        at: Boundary = req.last_node
        if account.flight is not None and not self.ledger.in_flight.move(account.flight, max(at.length, account.known)):
            account.flight = None
        due = account.due
        if due is not None and up_to >= due:
            account.due = None
            if at.length > due:  # a checkpoint ends where a state is
                self.ledger.note_unsaved(at, due, UNSAVED)

    def released(self, req: Any) -> None:
        """A request's row is free: it has ended, or was taken back. Cost: O(1)."""
        account: Account | None = getattr(req, ACCOUNT, None)
        if account is None:
            return
        if account.flight is not None:
            self.ledger.in_flight.end(account.flight)
            account.flight = None
        if account.admitted is not None and req.finished():
            admitted, account.admitted = account.admitted, None
            self._counters.observers.tell("finished", admitted, req.output_ids)

    def figures(self) -> MissFigures:
        """What was booked so far, of all trees. Any thread may ask. Cost: O(causes and details)."""
        counters = self._counters
        return MissFigures(counters.requests, counters.prompt_tokens, counters.hit_tokens, self._described())

    def _described(self) -> Counter[str]:
        """The misses in words: evicted ones by the pool that was short, others with their detail."""
        ledger, components = self.ledger, self._tree.components
        by_words: Counter[str] = Counter()
        rest = dict(zip(MissCause, ledger.tokens, strict=True))
        for (component, tier), tokens in ledger.evicted.items():
            by_words[f"evicted from the {tier.name.lower()} pool of {components[component].name}"] += tokens
            rest[MissCause.EVICTED] -= tokens
        for (cause, detail), tokens in ledger.details.copy().items():
            if cause is MissCause.OTHER_NAMESPACE:  # the detail is a tenant's name
                continue
            by_words[f"{in_words(cause)} ({detail})"] += tokens
            rest[cause] -= tokens
        for cause, tokens in rest.items():
            if tokens > 0:
                by_words[in_words(cause)] += tokens
        return by_words


def in_words(cause: MissCause) -> str:
    """The label of a cause, as a log shows it."""
    return cause.label.replace("_", " ")
