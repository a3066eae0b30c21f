"""The store of a server, over flushes of its cache and changes of the model's weights.

SGLang empties its cache on `POST /flush_cache` and, by default, in each update of weights, and does not say why. The calls that
update weights say it (`hooks`). So the store goes on after a flush, under the name of the same weights. From a change of
the weights to the next flush it is set aside, because what the cache holds until then is of other weights. After that flush it
goes on under a new name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from unified_tree.terms.errors import StorageError

if TYPE_CHECKING:
    from unified_tree.controllers.adapters.sglang.tiers import Tiers
    from unified_tree.controllers.storage_tier import StorageTier
    from unified_tree.controllers.storage_tier.store_settings import StoreSettings

logger = logging.getLogger(__name__)


class ServedWeights:
    """Which version of the weights a server has, and whether its cache is of that version alone.

    Args:
        life: names this life of the server, the same on all its ranks, and equal to no other life.

    Attributes:
        changes: how often they have changed, or may have.
        is_mixed: the cache may hold what other weights have computed.
        is_updating: between `begin_weight_update` and `end_weight_update`.

    >>> from unified_tree.controllers.adapters.sglang.kept_store import ServedWeights
    >>> weights = ServedWeights("life")
    >>> weights.changed("step-5")
    >>> weights.name("run-7", is_given=True), weights.name("run-7", is_given=False)
    ('run-7 step-5', 'unnamed life 1')
    """

    def __init__(self, life: str) -> None:
        self._life = life
        self.changes = 0
        self._label: str | None = None
        self.is_mixed = False
        self.is_updating = False

    def changed(self, label: str | None) -> None:
        """They have changed, or may have; `label` is the trainer's name of the new ones, None for none."""
        self.changes += 1
        self._label = label
        self.is_mixed = True

    def failed(self) -> None:
        """The change that was told last has failed: nothing is known of the weights."""
        self._label = None

    def emptied(self) -> None:
        """The cache is empty."""
        self.is_mixed = False

    @property
    def may_store(self) -> bool:
        """Whether what the cache computes is of weights that stay."""
        return not (self.is_mixed or self.is_updating)

    def name(self, first: str, *, is_given: bool) -> str:
        """Their name in a store.

        Args:
            first: that of the weights of the start.
            is_given: whether the settings say it, and so vouch for labels: two trainings may give different weights one label.
        """
        if not self.changes:
            return first
        return f"{first} {self._label}" if is_given and self._label else f"unnamed {self._life} {self.changes}"


class KeptStore:
    """At most one open store, which serves the tiers of one tree after the other.

    Args:
        open_tier: opens the store of some settings, by the name of the weights of the start, for a prefetch mode.
        first_weights: that name, of settings that do not say it.
        life: see `ServedWeights`.

    Attributes:
        weights: that the server has.
    """

    def __init__(self, open_tier: Callable[[StoreSettings, str], StorageTier], first_weights: str, life: str) -> None:
        self.weights = ServedWeights(life)
        self._open_tier = open_tier
        self._first_weights = first_weights
        self._tiers: Tiers | None = None
        self._settings: StoreSettings | None = None
        self._opened: StorageTier | None = None
        self._changes_before = 0

    @property
    def state(self) -> str:
        """The store, in words."""
        if self._settings is None:
            return "none"
        return self._settings.engine if self.weights.may_store else f"{self._settings.engine}, set aside until the next flush"

    @property
    def is_open(self) -> bool:
        """Whether there is a store, in use or set aside."""
        return self._opened is not None

    def clear(self) -> bool:
        """Delete what the store has of this model, of all versions of the weights; whether that was done. The log says why it
        was not."""
        if self._opened is None:
            logger.warning("unified_tree: there is no store to clear: none is set, or it was detached")
            return False
        try:
            if self._tiers is not None and self._tiers.storage is not None:
                self._tiers.storage.clear()
            else:
                self._opened.engine.clear()
        except StorageError as error:
            logger.error("unified_tree: the store was not cleared: %s", error)
            return False
        logger.info("unified_tree: the store was cleared")
        return True

    def open(self, settings: StoreSettings, prefetch_mode: str) -> None:
        """Open a store; it is used from the next `go_on`. Raises ConfigurationError and StorageError, with nothing changed."""
        assert self._opened is None, "a store is open"
        self._opened, self._settings = self._open_tier(settings, prefetch_mode), settings

    def follow(self, tiers: Tiers) -> None:
        """These are the tiers of a new tree, which is empty."""
        self._tiers = tiers
        self.weights.emptied()
        self.go_on()

    def go_on(self) -> None:
        """Put the store behind the tiers, unless it is there or set aside."""
        tiers, opened, settings = self._tiers, self._opened, self._settings
        if tiers is None or opened is None or settings is None or tiers.storage is not None or not self.weights.may_store:
            return
        name = self.weights.name(settings.weights_version or self._first_weights, is_given=settings.weights_version is not None)
        tiers.attach(opened.renewed(name))
        logger.info("unified_tree: store %s on, weights %s", settings.engine, name)

    def changed(self, label: str | None) -> None:
        """The weights change: the store is set aside until the cache is emptied. See `ServedWeights.changed`."""
        self.weights.changed(label)
        self._set_aside()

    def begin_update(self) -> None:
        """A session of updates has begun: the store is set aside until it has ended."""
        self.weights.is_updating = True
        self._changes_before = self.weights.changes
        self._set_aside()

    def end_update(self, *, is_empty: bool) -> None:
        """A session of updates has ended, with the cache empty or not. If it is, or nothing changed, the store goes on."""
        weights = self.weights
        weights.is_updating = False
        if weights.changes > self._changes_before and not is_empty:  # computed before the session was over
            weights.is_mixed = True
        self.go_on()

    def _set_aside(self) -> None:
        if self._tiers is not None and self._tiers.storage is not None:
            self._tiers.detach(keeps_engine=True)
            logger.info("unified_tree: the store is set aside until the cache is flushed, for the weights change")

    def close(self) -> bool:
        """Close the store and go on without it; whether there was one. Blocks as long as the engine's calls do."""
        opened, self._opened, self._settings = self._opened, None, None
        if opened is None:
            return False
        try:
            if self._tiers is not None:
                self._tiers.detach(keeps_engine=True)
        finally:
            opened.engine.close()
        return True
