"""Comparing keys and edges, and hashing a page: in C where that was compiled, else by slices."""

# pyright: reportMissingModuleSource=false

from __future__ import annotations

try:
    from unified_tree.native.key_bytes import agreement, page_code
except ImportError:
    from unified_tree.native.sliced_bytes import agreement, page_code

__all__ = ["agreement", "page_code"]
