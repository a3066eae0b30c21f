"""SGLang's calls beside matches, locks and slots: of sessions, of the store, and of the model's weights, by which stored pages
are named; and those that any cache answers in the same way at every moment.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.adapters.sglang.device_pools import FULL
from unified_tree.controllers.adapters.sglang.request_sessions import RequestSessions
from unified_tree.controllers.cache.engine_turns import EngineTurns
from unified_tree.terms.errors import ConfigurationError, StorageError
from unified_tree.terms.results import NOWHERE
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from unified_tree.controllers.adapters.sglang.assembly import TierBuilder
    from unified_tree.controllers.adapters.sglang.observation import Observation
    from unified_tree.controllers.adapters.sglang.request_keys import RequestKeys
    from unified_tree.controllers.adapters.sglang.request_misses import RequestMisses
    from unified_tree.controllers.adapters.sglang.tiers import Tiers
    from unified_tree.controllers.cache.sessions import Session
    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.terms.results import Boundary
    from unified_tree.tree import UnifiedTree


class FixedAnswers:
    """The answers that need nothing of the cache."""

    disable = False
    ongoing_write_through = ongoing_load_back = ongoing_prefetch = ongoing_backup = range(0)
    """SGLang does not empty a cache while these hold anything, not even after it has new weights. `reset` ends what is under
    way, so there is nothing to wait for."""
    hicache_storage_pass_prefix_keys = False

    def is_root(self, node: Boundary) -> bool:
        """Whether it is the empty prefix."""
        return node.length == 0

    def root_node_handle(self, extra_key: str | None = None) -> Boundary:
        """The boundary of length zero, which is the same in every namespace."""
        return NOWHERE

    def is_backuped(self, node: Boundary) -> bool:
        """SGLang asks before a prefetch; ours finds by itself how far the host has a prompt."""
        return True

    def get_last_hash_value(self, node: Boundary) -> None:
        """SGLang passes it to `prefetch_from_storage`, which needs none."""
        return

    def inc_lock_ref(self, node: Boundary) -> Any:
        """SGLang calls `lock` instead."""
        raise NotImplementedError("locks are taken by `lock`")

    def dec_lock_ref(self, node: Boundary, params: Any = None) -> Any:
        """SGLang calls `unlock` instead."""
        raise NotImplementedError("locks are released by `unlock`")


class SessionAnswers:
    """SGLang's calls about sessions, with `--enable-session-radix-cache`.

    Attributes:
        enable_session_radix_cache: SGLang's flag, which it asks a cache for.
        has_one_clock: whether no other rank has to decide alike.
        sessions: those of the requests; None without the flag, unless requests without sessions are to be followed, too.
    """

    enable_session_radix_cache: bool
    has_one_clock: bool
    sessions: RequestSessions | None = None
    observation: Observation
    _infers: bool
    _grid_tokens: int

    def _begin_sessions(self, tree: UnifiedTree, counters: CacheCounters) -> RequestSessions | None:
        """The sessions of an empty tree; None if they are turned off."""
        if not (self.enable_session_radix_cache or self._infers):
            return None
        turns = EngineTurns(
            tree,
            counters,
            self._grid_tokens,
            infers=self._infers,
            prefers=self.enable_session_radix_cache,
            has_one_clock=self.has_one_clock,
        )
        if self.sessions is None:
            self.sessions = RequestSessions(turns, counters)
        else:
            self._end_hints()  # those about the tree before
            self.sessions.turns = turns
        self.observation.sessions = self.sessions
        return self.sessions

    def _poll_hints(self) -> None:
        """End hints whose time is over."""
        if self.sessions is not None:
            self.sessions.turns.hints.poll()

    def _end_hints(self) -> None:
        """End all hints, each with its outcome, and refuse those that come. Idempotent."""
        if self.sessions is not None:
            self.sessions.turns.hints.close()

    def open_radix_session(self, session_id: str) -> Session | None:
        """`POST /open_session`. Returns what SGLang keeps with the requests of the session that arrive."""
        return None if self.sessions is None else self.sessions.opened(session_id)

    ensure_session_generation = open_radix_session

    def release_radix_session(self, session_id: str) -> None:
        """`POST /close_session`: what only this session could go on from is evicted first. No effect for an unknown one."""
        if self.sessions is not None:
            self.sessions.ended(session_id)


NO_HOST_TIER = "a store needs a host tier: start with --enable-hierarchical-cache"


class StoreAnswers:
    """SGLang's calls about the store and the weights. Tiers and their builder are None without a host tier."""

    tree: UnifiedTree
    observation: Observation
    misses: RequestMisses | None
    _tiers: Tiers | None
    _builder: TierBuilder | None
    _keys: RequestKeys

    @property
    def enable_storage(self) -> bool:
        """Whether there is a store."""
        return self._tiers is not None and self._tiers.storage is not None

    def clear_storage_backend(self) -> bool:
        """Delete what the store has of this model, that of other servers that share it included (with `simm` what this server
        wrote alone); whether that was done.

        `POST /hicache/storage-backend/clear`. Blocks until the writes that have begun are done and the store has answered.
        """
        return self._builder is not None and self._builder.store.clear()

    def attach_storage_backend(
        self,
        storage_backend: str,
        storage_backend_extra_config_json: str | None = None,
        served_model_name: str | None = None,
        hicache_storage_prefetch_policy: str | None = None,
        hicache_write_policy: str | None = None,
    ) -> tuple[bool, str]:
        """Open a store while the server has nothing to do, on all ranks; whether that was done, and a sentence.

        `PUT /hicache/storage-backend`. See `TierBuilder.open_store`.
        """
        del storage_backend, served_model_name  # the name of a store of SGLang's own; the model's, which is known
        if self._builder is None:
            return False, NO_HOST_TIER
        try:
            with self._store_may_change():
                state = self._builder.open_store(
                    storage_backend_extra_config_json, hicache_storage_prefetch_policy, hicache_write_policy
                )
        except (ConfigurationError, StorageError) as error:
            return False, f"The store was not attached: {error}."
        return True, f"The store of this cache: {state}."

    def detach_storage_backend(self) -> tuple[bool, str]:
        """Close the store while the server has nothing to do, and go on without it; whether there is none now, and a sentence.

        `DELETE /hicache/storage-backend`. Its pages stay. Reads and writes that run are cancelled.
        """
        if self._builder is None:
            return True, NO_HOST_TIER
        try:
            with self._store_may_change():
                was_open = self._builder.store.close()
        except StorageError as error:
            return True, f"The store was detached, and has failed to close: {error}."
        return True, "The store was detached; its pages stay." if was_open else "There was no store."

    def weights_changed(self, label: str | None) -> None:
        """The model's weights change now, or may; `label` is what the caller names the new ones. See `KeptStore.changed`."""
        if self._builder is not None:
            with self._store_may_change():
                self._builder.store.changed(label)

    def weights_failed(self) -> None:
        """The change that was told last has failed."""
        if self._builder is not None:
            self._builder.store.weights.failed()

    def weights_update_began(self) -> None:
        """From now until `weights_update_ended` the weights may be between two versions."""
        if self._builder is not None:
            with self._store_may_change():
                self._builder.store.begin_update()

    def weights_update_ended(self) -> None:
        """The weights stay as they are."""
        if self._builder is not None:
            pools = [self.tree.pool(FULL, tier) for tier in (Tier.DEVICE, Tier.HOST)]
            with self._store_may_change():
                self._builder.store.end_update(is_empty=not any(pool.used_pages for pool in pools))

    def finish_copies(self) -> None:
        """Wait for all copies between device and host: the device's memory is about to be given back."""
        if self._tiers is not None:
            self._tiers.controller.drain()

    @contextmanager
    def _store_may_change(self) -> Iterator[None]:
        """Metrics and the inspector follow the store through a change."""
        if self._tiers is not None:
            self.observation.tell_store(self._tiers, is_last=True)
        try:
            yield
        finally:
            if self._tiers is not None:
                self.observation.follow_store(self._tiers)

    def prefetch_from_storage(
        self,
        handle: Hashable,
        last_host_node: Boundary,
        new_tokens: Any,
        last_hash: str | None = None,
        prefix_keys: list[str] | None = None,
        *,
        matched_prefix_tokens: Any,
        extra_key: str | None = None,
        cache_salt: str | None = None,
        **kwargs: Any,
    ) -> bool:
        """Start to fetch an arrived prompt from the store; whether there is something to wait for."""
        del last_host_node, last_hash, prefix_keys, kwargs  # ours finds by itself how far the host has a prompt
        tokens = array("q", matched_prefix_tokens) + array("q", new_tokens)
        tokens.append(0)  # SGLang leaves out the last token, which is computed; a prefetch leaves out the last of its key
        return self._tiers is not None and self._tiers.prefetch(
            handle, self._keys.key(tokens, len(tokens), extra_key, cache_salt)
        )

    def has_ongoing_prefetch(self, handle: Hashable) -> bool:
        """Whether a request waits for the store."""
        return not self.check_prefetch_progress(handle)

    def check_prefetch_progress(self, handle: Hashable) -> bool:
        """Whether a request may be admitted: its prefetch has ended, or it waits no longer."""
        return self._tiers is None or self._tiers.is_prefetched(handle)

    def pop_prefetch_loaded_span(self, handle: Hashable) -> tuple[int, int | None]:
        """How many tokens the store added to a request's prefix, once; where they begin is not known."""
        if self.misses is not None and self._tiers is not None:
            self.misses.given_up(handle, self._tiers.due_tokens(handle), self._tiers.store_loss(handle))
        return (0 if self._tiers is None else self._tiers.end_prefetch(handle)), None

    def release_aborted_request(self, handle: Hashable) -> None:
        """An aborted request waits no longer."""
        if self.misses is not None:
            self.misses.cancelled(handle)
        if self._tiers is not None:
            self._tiers.cancel_prefetch(handle)
