"""What SGLang asks of any cache, and this one answers in the same way at every moment."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unified_tree.terms.results import NOWHERE

if TYPE_CHECKING:
    from unified_tree.terms.results import Boundary


class FixedAnswers:
    """The answers, which need nothing of the cache."""

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
