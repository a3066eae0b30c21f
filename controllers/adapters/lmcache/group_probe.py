"""Whether a daemon keeps windows and states apart from pages of every token, found out by storing something.

The daemon does not say how it was started. One that was not told --separate-object-groups would keep all of a chunk as one
object, find prefixes without their windows, and fill pages with what was never stored; so it must not be used at all.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

import numpy as np

from unified_tree.controllers.prefix_linker.prefix_linker import Span
from unified_tree.terms.errors import ConfigurationError, LinkError

if TYPE_CHECKING:
    from unified_tree.controllers.adapters.lmcache.daemon_session import DaemonSession


def check_object_groups(session: DaemonSession) -> None:
    """Store so many chunks, under tokens that nobody else has, that the first has no window and no state, and look for them.

    All of them must be found, and the first alone must not. Pages are read, none is written.
    Raises ConfigurationError for a daemon that finds the first, LinkError for one that finds nothing or does not end looking.
    Blocks.
    """
    chunk, salt = session.chunk_tokens, f"probe-{secrets.token_hex(12)}"
    chunks = 1 + max(pool.coverage.boundary_pages(session.chunk_tokens) for pool in session.pools)
    tokens = np.arange(chunks * chunk, dtype=np.int64) & 0xFFFF
    pages = {}
    for pool in session.pools:
        first, last = pool.page_range(0, tokens.size)
        pages[pool.name] = np.ones(last - first, np.int64)  # a page that is not the null block
        if min(tensor.shape[0] for tensor in pool.tensors) < 2:
            raise ConfigurationError(f"lmcache: {pool.name} needs two pages or more")
    span = Span(tokens=tokens, salt=salt, begin=0, end=tokens.size, pages=pages)
    if not session.answer(session.store(f"{salt}-store", span)):
        raise LinkError("lmcache: the daemon did not store what it was tried with")
    for attempt in range(session.settings.probe_attempts):
        if _found(session, f"{salt}-{attempt}", span, tokens.size) == tokens.size:
            break
        time.sleep(session.settings.probe_pause_s)
    else:
        raise LinkError("lmcache: the daemon does not find what it was tried with; has it memory to spare?")
    if _found(session, f"{salt}-first", span, chunk):
        raise ConfigurationError(
            "lmcache: the daemon does not keep windows and states apart from the pages of every token: start it with "
            "--separate-object-groups, and with the --null-block-id that it has by default"
        )


def _found(session: DaemonSession, request: str, span: Span, end: int) -> int:
    key = session.key(request, tuple(span.tokens[:end].tolist()), span.salt, 0, end, worker=None)
    session.answer(session.client.lookup(key, 1))
    chunks, late = None, time.monotonic() + session.settings.answer_timeout_s
    while chunks is None:
        if time.monotonic() > late:
            raise LinkError(
                f"lmcache: the daemon looks for what it was tried with for longer than {session.settings.answer_timeout_s} s"
            )
        chunks = session.answer(session.client.query_prefetch_status(request))
    if chunks:
        held = session.key(request, tuple(span.tokens[:end].tolist()), span.salt, 0, chunks * session.chunk_tokens, worker=None)
        session.answer(session.client.free_lookup_locks(held, 1))
    session.answer(session.client.end_session(request))
    return int(chunks) * session.chunk_tokens
