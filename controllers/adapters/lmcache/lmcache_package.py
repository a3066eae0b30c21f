"""The package lmcache, which is imported when a link is opened."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from unified_tree.terms.errors import ConfigurationError


def lmcache_module(name: str) -> Any:
    """A module of lmcache's, or of a package it brings. Raises ConfigurationError, naming the extra, where it is missing."""
    try:
        return import_module(name)
    except ImportError as error:
        raise ConfigurationError(
            f"lmcache: the package cannot be imported ({error}): pip install 'unified-tree[lmcache]', and as its page says"
        ) from error
