"""SGLang keeps fp8 of both kinds as plain bytes: servers with `fp8_e4m3` and with `fp8_e5m2` read each other's pages."""

from __future__ import annotations

import sglang_pools as pools
import torch

from unified_tree.controllers.adapters.sglang.engine_tensors import RankParts, engine_tensors
from unified_tree.declare.page_format import PageFormat


def stored(dtype: torch.dtype) -> PageFormat:
    """The format under which pages of an fp8 cache are stored."""
    bytes_of_it = {name: [torch.zeros(8, 1, 2, dtype=torch.uint8)] for name in ("k_buffer", "v_buffer")}
    pool = pools.attention(8, 1, dtype=dtype, **bytes_of_it)
    return engine_tensors(pool, None, 1, RankParts.of(0, 1), has_windows=False, has_states=False)["full"].format


def test_the_format_of_a_page_names_the_dtype_of_its_elements() -> None:
    one, two = stored(torch.float8_e4m3fn), stored(torch.float8_e5m2)
    assert [part.dtype for part in one.parts] == ["float8_e4m3fn"] * 2
    assert one != two
    assert one.page_bytes == two.page_bytes
