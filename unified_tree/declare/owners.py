"""Keys of namespaces that share: one root for all of them, and the owner of each page in the upper bits of its token ids.

The elements up to a length, the *fork*, are common: they have their plain ids. Those behind it have the owner's mark, a number
by namespace, above bit 42. So two namespaces meet as far as both keys are common, and no further: the tree compares bytes, as
ever, and windows and states hang on the path that they depend on. Rejected: a tree for what is common beside those of the
namespaces (a path would have pages of two trees), and pages that several namespaces may see by a list (a hit would depend on
what another namespace keeps alive, and so tell of it).

Ids of 2**42 and more leave no room for a mark. Prompts that have one stay in the tree of their namespace alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from unified_tree.declare.keys import Key, Mark
from unified_tree.inputs.arguments import INT64_BYTES
from unified_tree.terms.errors import ConfigurationError, InvalidKeyError

if TYPE_CHECKING:
    from unified_tree.declare.tenants import Tenants

SHARED: Final = "(shared)"
"""The namespace of the root that namespaces which share have together. No request may name it."""
MARK_SHIFT: Final = 42
MAX_OWNERS: Final = (1 << (63 - MARK_SHIFT)) - 1
COMMON: Final = 0
"""The mark of what is common."""


class Owners:
    """The owners of a declaration. A namespace is one, or a group whose namespaces are one.

    Attributes:
        marks: by namespace, of those that share.
        names: by mark, what pages in a store are salted with; that of what is common is empty.
        groups: by mark, the group whose share its values count for.
        tenants: by mark, who has shown a prompt with it: the group; 0 for one that does not count.

    Raises ConfigurationError if there are more than 2,097,151.
    """

    def __init__(self, tenants: Tenants) -> None:
        self.marks: dict[str, int] = {}
        self.names: list[str] = [""]
        self.groups: list[int] = [tenants.names.index(tenants.common_group)]
        self.tenants: list[int] = [0]
        for place, group in enumerate(tenants.groups, 1):
            counts = group.shares and tenants.share_after is not None
            if not (counts or group.one_namespace):
                continue
            for name in group.namespaces:
                if group.one_namespace and name != group.namespaces[0]:
                    self.marks[name] = len(self.names) - 1
                    continue
                self.marks[name] = len(self.names)
                self.names.append(name)
                self.groups.append(place)
                self.tenants.append(place if counts else 0)
        if len(self.names) > MAX_OWNERS + 1:
            raise ConfigurationError(f"at most {MAX_OWNERS} namespaces can share, not {len(self.names) - 1}")


def owned(data: bytes | memoryview, owner: int) -> bytes:
    """Elements with an owner's mark. Cost: one pass."""
    ids: np.ndarray[tuple[int], np.dtype[np.int64]] = np.frombuffer(data, np.int64)
    return (ids | (owner << MARK_SHIFT)).tobytes()


def owner_at(edge: bytes, offset: int) -> int:
    """The mark of an id at an offset in bytes, from the end if that is negative."""
    ids: np.ndarray[tuple[int], np.dtype[np.int64]] = np.frombuffer(edge, np.int64)
    return int(ids[offset // INT64_BYTES]) >> MARK_SHIFT


def can_mark(data: bytes | memoryview) -> bool:
    """Whether all ids, none of them negative, leave room for a mark. Cost: one pass."""
    ids: np.ndarray[tuple[int], np.dtype[np.int64]] = np.frombuffer(data, np.int64)
    return not ids.size or int(ids.max()) >> MARK_SHIFT == 0


def require_room(data: bytes | memoryview) -> None:
    """Raise InvalidKeyError for an id that leaves no room for a mark. Cost: one pass."""
    if not can_mark(data):
        raise InvalidKeyError(f"a prompt that shares prefixes goes on with an id of {2**MARK_SHIFT} or more")


def marked(key: Key, plain: bytes, own: bytes, mark: Mark) -> Key:
    """A whole key in the shared root: its plain elements up to the fork, its owner's behind. Cost: one copy."""
    cut = mark.fork * key.width_bytes
    found = Key.from_elements(plain[:cut] + own[cut:], SHARED, bigram=key.bigram, is_checked=True)
    found.mark = mark
    return found


def remarked(key: Key) -> Key:
    """A key that was read from the tree, with the mark that it shows if it is of namespaces that share. Cost: one pass."""
    if key.namespace == SHARED and key.length:
        ids: np.ndarray[tuple[int], np.dtype[np.int64]] = np.frombuffer(key.data, np.int64)[:: key.width_bytes // INT64_BYTES]
        key.mark = Mark(SHARED, int(ids[-1]) >> MARK_SHIFT, int(np.count_nonzero(ids >> MARK_SHIFT == COMMON)))
    return key


def unmarked(key: Key, namespace: str) -> Key:
    """The request's own key again. Cost: one pass."""
    ids: np.ndarray[tuple[int], np.dtype[np.int64]] = np.frombuffer(key.data, np.int64)
    data = (ids & ((1 << MARK_SHIFT) - 1)).tobytes()[: (key.length - key.begin) * key.width_bytes]
    return Key.from_elements(data, namespace, bigram=key.bigram, begin=key.begin, is_checked=True)
