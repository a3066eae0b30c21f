"""The factories, one kind each."""

from __future__ import annotations

from unified_tree.components import compressed, draft, full, indexer, mamba, overlap, swa
from unified_tree.components.kinds import delta_net_state, mamba1_state, mamba2_state
from unified_tree.declare.component import validate_components
from unified_tree.declare.coverage import Path, Point, Trailing


def test_one_of_each_lives_in_one_tree() -> None:
    kinds = [
        full(page_size=8, bytes_per_token=10, flops_per_token=3.0),
        swa(page_size=8, window_tokens=5, layers=2, bytes_per_token=4),
        mamba(state_bytes=99, save_grid_tokens=16),
        draft(page_size=8, bytes_per_token=1),
        indexer(page_size=8, bytes_per_slot=6, tokens_per_slot=2),
        compressed(page_size=8, tokens_per_slot=4, bytes_per_slot=7, shares="full"),
        overlap(window_tokens=4, state_bytes=50),
    ]
    validate_components(kinds, 8)
    assert {c.name: (c.coverage, c.page_bytes, c.shares) for c in kinds} == {
        "full": (Path(), 80, None),
        "swa": (Trailing(5), 32, None),
        "mamba": (Point(), 99, None),
        "draft": (Path(), 8, "full"),
        "indexer": (Path(), 24, "full"),
        "c4": (Path(), 14, "full"),
        "overlap": (Trailing(4), 50, "swa"),
    }
    assert [c.name for c in kinds if not c.required] == ["draft"]


def test_a_window_whose_rebuild_is_not_known_declares_none() -> None:
    assert swa(page_size=8, window_tokens=5, layers=2, bytes_per_token=4).rebuild_tokens == 10
    assert swa(page_size=8, window_tokens=5, layers=2, bytes_per_token=4, exact_rebuild=False).rebuild_tokens is None


def test_state_shapes() -> None:
    one = mamba1_state(channels=8192, state_dim=16, conv_kernel=4)
    assert (one.conv_channels, one.conv_columns, one.recurrent_shape) == (8192, 3, (8192, 16))
    two = mamba2_state(heads=128, head_dim=64, groups=8, state_dim=128, conv_kernel=4)
    parts = two.parts(conv_dtype="bfloat16", recurrent_dtype="float32")
    assert [part.row_bytes for part in parts] == [(8192 + 2 * 8 * 128) * 3 * 2, 128 * 64 * 128 * 4]
    delta = delta_net_state(key_heads=2, key_dim=8, value_heads=4, value_dim=16, conv_kernel=3)
    parts = delta.parts(conv_dtype="int8", recurrent_dtype="int8")
    assert [part.shape for part in parts] == [(2 * 2 * 8 + 4 * 16, 2), (4, 8, 16)]
