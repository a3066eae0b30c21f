"""The windows of a request whose prompt another server has computed.

SGLang's decode server reserves one token more of a window than its prefill server sends. Where a page begins in between, the
first reserved page of a window is one that nothing was written to.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from typing import Any


def free_unwritten(cache: Any, req: Any, token_count: int) -> None:
    """Free a request's windows before those that its next token reads: of a prompt that has just arrived, no others were sent.

    Args:
        cache: of the decode server, whose hits need no windows.
        token_count: how many tokens the request has.
    """
    from sglang.srt.mem_cache.common import free_swa_out_of_window_slots

    free_swa_out_of_window_slots(
        req,
        token_count,
        sliding_window_size=cache.sliding_window_size,
        page_size=cache.page_size,
        req_to_token_pool=cache.req_to_token_pool,
        token_to_kv_pool_allocator=cache.token_to_kv_pool_allocator,
        supports_prefix_sharing=False,  # else it keeps a page more
    )
