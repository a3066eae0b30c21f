"""Recurrent state: Mamba, Mamba2, gated delta nets and other linear attention.

Such a layer keeps two tensors, whatever the length of the prompt: the last inputs of a short convolution, and the
recurrence's own state. Both belong to one position, hence `Point`. The convolution holds `kernel - 1` columns, the past
inputs that the next token needs; the `transformers` cache keeps `kernel` of them, the oldest of which is never read.
The recurrent state is fp32 unless a config says otherwise: that is what the scan kernels return (`mamba_ssm`, `fla`, and
the eager code in `transformers`), and rounding it at every save would accumulate. The convolution keeps the model's dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

from unified_tree.declare.component import Component
from unified_tree.declare.coverage import Point
from unified_tree.declare.page_format import PageFormat, Part


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShape:
    """The state of one layer on one rank, in elements.

    Attributes:
        conv_channels: channels of the short convolution.
        conv_columns: past inputs kept of each channel.
        recurrent_shape: of the recurrent state.
    """

    conv_channels: int
    conv_columns: int
    recurrent_shape: tuple[int, ...]

    def parts(self, *, conv_dtype: str, recurrent_dtype: str) -> tuple[Part, ...]:
        """The two tensors of one state of one layer."""
        conv = Part("conv", conv_dtype, (self.conv_channels, self.conv_columns))
        return conv, Part("ssm", recurrent_dtype, self.recurrent_shape)


def mamba1_state(*, channels: int, state_dim: int, conv_kernel: int) -> StateShape:
    """Mamba (selective scan): `channels` inputs, each with a state of `state_dim`. Source: Gu and Dao, 2023."""
    return StateShape(conv_channels=channels, conv_columns=conv_kernel - 1, recurrent_shape=(channels, state_dim))


def mamba2_state(*, heads: int, head_dim: int, groups: int, state_dim: int, conv_kernel: int) -> StateShape:
    """Mamba2: a `head_dim x state_dim` state a head; the convolution also runs over B and C of every group.

    Source: Dao and Gu, 2024; channels are `heads * head_dim + 2 * groups * state_dim`.
    """
    channels = heads * head_dim + 2 * groups * state_dim
    return StateShape(conv_channels=channels, conv_columns=conv_kernel - 1, recurrent_shape=(heads, head_dim, state_dim))


def delta_net_state(*, key_heads: int, key_dim: int, value_heads: int, value_dim: int, conv_kernel: int) -> StateShape:
    """Gated delta net or Kimi delta attention: a `key_dim x value_dim` state a value head; convolutions over q, k and v.

    Source: Yang et al., 2024; channels are `2 * key_heads * key_dim + value_heads * value_dim`.

    >>> delta_net_state(key_heads=16, key_dim=128, value_heads=32, value_dim=128, conv_kernel=4).conv_channels
    8192
    """
    return StateShape(
        conv_channels=2 * key_heads * key_dim + value_heads * value_dim,
        conv_columns=conv_kernel - 1,
        recurrent_shape=(value_heads, key_dim, value_dim),
    )


def mamba(
    *,
    state_bytes: int = 0,
    page_format: PageFormat | None = None,
    save_grid_tokens: int = 1,
    flops_per_token: float = 0.0,
    name: str = "mamba",
) -> Component:
    """The `Point` component of all recurrent layers.

    Args:
        state_bytes: bytes of one state on one rank, summed over the layers; it is the component's `page_bytes`. Left out with a
            format.
        page_format: what a page, which is one state, holds; needed to store it.
        save_grid_tokens: the token grid on which a prefill can save a state, a scan kernel's chunk length.
        flops_per_token: twice the active weights of those layers, over all ranks; the recurrence itself, a few per
            cent of that, is not counted.
        name: the component's name.
    """
    return Component(
        name=name,
        coverage=Point(),
        page_bytes=state_bytes,
        save_grid_tokens=save_grid_tokens,
        flops_per_token=flops_per_token,
        format=page_format,
    )
