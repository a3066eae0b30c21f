"""A commit, checked before its first insert, so that no later insert of it can be refused. The pages are the lease's own, the
path up to the committed length is locked, and the caller's arguments were compared with both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from unified_tree.controllers.cache.lease_tokens import Publication
from unified_tree.inputs.arguments import flag, integer, items
from unified_tree.inputs.printable import repr_of
from unified_tree.terms.errors import InsertError, LeaseError
from unified_tree.terms.results import record

if TYPE_CHECKING:
    from unified_tree.controllers.cache.lease_state import LeaseState
    from unified_tree.controllers.cache.resources import CacheLayout
    from unified_tree.declare.keys import Key


def checked_publication(
    lease: LeaseState,
    layout: CacheLayout,
    tokens: Any,  # unchecked, as those below: compiled code would refuse in its own words
    states: Any,
    without: Any,
    resumable: Any,
    begin: Any = 0,
    ends: bool = False,
) -> Publication:
    """Check the arguments of a commit; one that `ends` the lease may be of fewer tokens than it has committed.

    Raises LeaseError, InsertError or InvalidKeyError; changes nothing.
    """
    piece = _piece(lease, tokens, begin)
    length = piece if isinstance(piece, int) else piece.length
    least = min(lease.committed, lease.computed)
    if length < least and not ends:
        raise LeaseError(
            f"the first {least} tokens of {lease} are committed, so a commit of the first {length} adds nothing, and takes "
            "nothing back; `truncate` takes back what was not committed"
        )
    lease.require_state(length)
    end = layout.floor_to_page(length)
    if resumable is not None:
        resumable = flag(resumable, "resumable", LeaseError)
    else:
        at_prompt_end = end == layout.floor_to_page(lease.prompt_tokens)
        resumable = length >= lease.prompt_tokens and (lease.saves_prompt_end if at_prompt_end else lease.save_output)
    whole = None if isinstance(piece, int) else piece
    checked, names = _checked_states(lease, layout, states, length, end), _checked_names(layout, without)
    if checked and layout.point in names:
        raise LeaseError(f"states of {layout.point!r} were given, but `without` says that it has none: {repr_of(checked)}")
    return record(Publication, (length, end, whole, checked, names, resumable))


def _piece(lease: LeaseState, tokens: Any, begin: Any) -> Key | int:
    """The tokens given, which must agree with what the lease knows, as a key's tail; of a number that number."""
    known = lease.tokens
    begin = integer(begin, "begin", LeaseError)
    if isinstance(tokens, int | float | np.number):
        length = integer(tokens, "tokens", LeaseError)
        if begin:
            raise LeaseError(f"begin={begin} was given with a number of tokens, {length}, which counts from the first token")
        if length > known.length:
            raise LeaseError(f"{lease} knows {known.length} tokens, so {length} cannot be committed by number; give the tokens")
        _require_pages(lease, length)
        return length
    if begin > known.length:
        raise LeaseError(f"{lease} knows {known.length} tokens, so those given cannot begin at {begin}")
    key = known.piece(tokens, begin)
    key.require_tokens(max(begin, lease.committed))
    _require_pages(lease, key.length)
    if begin < known.length and not known.agree(key):
        at = known.first_difference(key)
        raise LeaseError(f"token {at} of those committed differs from that of {lease}, which knows the first {known.length}")
    return key


def _require_pages(lease: LeaseState, length: int) -> None:
    if length > lease.length:
        raise LeaseError(f"{lease} has pages for {lease.length} tokens, so {length} cannot be committed")


def _checked_states(lease: LeaseState, layout: CacheLayout, states: Any, computed: int, end: int) -> dict[int, int]:
    """Each state page must be the lease's own for that length, a page's end; that of the running state is the run's."""
    if states is None:
        return {}
    if type(states) is not dict and not isinstance(states, Mapping):
        raise LeaseError(f"states must be a mapping from lengths to pages, not {repr_of(states)}")
    if not states:
        return {}
    if layout.point is None:
        raise LeaseError(f"states were given, but no component has any: {repr_of(dict(states))}")
    given = {
        integer(length, "the length of a state", LeaseError): integer(page, "the page of a state", LeaseError)
        for length, page in states.items()
    }
    if len(set(given.values())) != len(states):
        raise LeaseError(f"a state page is given twice: {repr_of(dict(states))}")
    own = lease.states
    running, saves = (None, {}) if own is None else (own.running, own.saves)
    for length, page in given.items():
        if not 0 < length <= end or length % layout.page_size:
            raise LeaseError(
                f"a state at {length} is not at the end of one of the {end // layout.page_size} whole pages computed"
            )
        if page != running and page != saves.get(length):
            raise LeaseError(
                f"page {page} of {layout.point!r} is not what {lease} saves the state at {length} in; "
                f"it has {saves} and, for the running state, {running}"
            )
        if page == running and length != (held := lease.state_after(computed)):
            raise LeaseError(
                f"page {page} of {layout.point!r} holds the running state, "
                + (f"which is that of {held} tokens, not {length}" if held is not None else _why_unknown(lease))
            )
    return given if len(given) < 2 else dict(sorted(given.items()))


def _why_unknown(lease: LeaseState) -> str:
    if lease.states is not None and lease.states.is_lost:
        return f"whose length is unknown: {lease} had no state to begin from"
    if lease.computed <= lease.cached_tokens:
        return f"whose length is unknown: {lease} has not run yet"
    return f"whose length is unknown: {lease} was truncated, and no more tokens were reported as computed since"


def checked_optional(layout: CacheLayout, without: Any) -> tuple[str, ...]:
    """Optional components with pages of their own, by name. Raises LeaseError for anything else."""
    if type(without) is tuple and not without:
        return ()
    names = tuple(items(without, "without", LeaseError))
    for name in names:
        if not isinstance(name, str) or name not in layout.can_give_up:
            there = ", ".join(sorted(layout.can_give_up)) or "none"
            raise LeaseError(f"without: {repr_of(name)} is no optional component with pages of its own; there are {there}")
    return names


def _checked_names(layout: CacheLayout, without: Any) -> tuple[str, ...]:
    """Components that may be missing from pages."""
    if type(without) is tuple and not without:
        return ()
    names = tuple(items(without, "without", LeaseError))
    components = {component.name: component for component in layout.components}
    for name in names:
        component = components.get(name) if isinstance(name, str) else None
        if component is None:
            raise InsertError(f"without: there is no component {repr_of(name)}; there are {', '.join(components)}")
        if component.required and component.coverage.is_path:
            raise InsertError(f"without: {name} is a required path, so no pages can be committed without it")
    return names
