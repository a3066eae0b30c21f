"""A request that has arrived at a link."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unified_tree.controllers.prefix_linker.linked_retrieve import LinkedRetrieve
    from unified_tree.controllers.weights.generations import Generation
    from unified_tree.declare.keys import Key


class Stage(Enum):
    """How far a request is."""

    LOOKING = "looking"
    FETCHING = "fetching"
    READY = "ready"


@dataclass(slots=True)
class LinkedRequest:
    """One request.

    Attributes:
        key: its prompt.
        name: what the linker knows it as.
        salt: of its namespace when it arrived.
        generation: of its namespace when it arrived.
        since: when that was, in seconds.
        stage: how far it is.
        stored_tokens: what the peer has, or was asked to keep.
        retrieved_tokens: what came by a retrieve.
        retrieve: the one under way.
    """

    key: Key
    name: str
    salt: str
    generation: Generation
    since: float
    stage: Stage = Stage.LOOKING
    stored_tokens: int = 0
    retrieved_tokens: int = 0
    retrieve: LinkedRetrieve | None = None
