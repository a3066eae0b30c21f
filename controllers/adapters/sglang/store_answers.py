"""What SGLang asks of the store behind a cache, and what it tells of the model's weights, by which stored pages are named."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from unified_tree.controllers.adapters.sglang.device_pools import FULL
from unified_tree.terms.errors import ConfigurationError, StorageError
from unified_tree.terms.tier import Tier

if TYPE_CHECKING:
    from unified_tree import UnifiedTree
    from unified_tree.controllers.adapters.sglang.assembly import TierBuilder
    from unified_tree.controllers.adapters.sglang.observation import Observation
    from unified_tree.controllers.adapters.sglang.request_keys import RequestKeys
    from unified_tree.controllers.adapters.sglang.request_misses import RequestMisses
    from unified_tree.controllers.adapters.sglang.tiers import Tiers
    from unified_tree.terms.results import Boundary

NO_HOST_TIER = "a store needs a host tier: start with --enable-hierarchical-cache"


class StoreAnswers:
    """The answers of a cache with these tiers, which `builder` has built; both are None without a host tier."""

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
        """Delete what the store has of this model, that of other servers that share it included; whether that was done.

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
