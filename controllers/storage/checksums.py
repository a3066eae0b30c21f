"""xxh3 of the xxhash package. An install without the `storage` extra lacks it: stores can be imported, and say so when used."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xxhash import xxh3_64_digest, xxh3_128_digest
else:
    try:
        from xxhash import xxh3_64_digest, xxh3_128_digest
    except ModuleNotFoundError:

        def xxh3_64_digest(_data):
            """Raises ModuleNotFoundError that names the extra."""
            raise ModuleNotFoundError("stores need xxhash; run: pip install 'unified-tree[storage]'", name="xxhash")

        xxh3_128_digest = xxh3_64_digest

__all__ = ["xxh3_64_digest", "xxh3_128_digest"]
