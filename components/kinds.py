"""The state of layers by kind: attention's, full, sliding-window (SWA), a sparse attention's index keys and compressed KV;
recurrent layers' (Mamba, Mamba2, gated delta nets and other linear attention); and the path of a model that has no per-token
state, because all its layers keep windows or recurrent states.

Compressed KV (DeepSeek-V4) has one entry for several tokens, and the state a 4:1 compressor carries between entries. Layers of
one kind emit an entry every 4 tokens, pooled from the last 8, so the next entry needs the *overlap*: what the last 4 tokens
contribute to it. The other kind emits one every 128 tokens without overlap. Between entries both keep a buffer of the tokens
that have not filled one yet; at a page boundary it is empty, the page being a multiple of the ratio.

A recurrent layer keeps two tensors, whatever the length of the prompt: the last inputs of a short convolution, and the
recurrence's own state. Both belong to one position, hence `Point`. The convolution holds `kernel - 1` columns, the past
inputs that the next token needs; the `transformers` cache keeps `kernel` of them, the oldest of which is never read.
The recurrent state is fp32 unless a config says otherwise: that is what the scan kernels return (`mamba_ssm`, `fla`, and
the eager code in `transformers`), and rounding it at every save would accumulate. The convolution keeps the model's dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

from unified_tree.declare.component import Component
from unified_tree.declare.coverage import Path, Point, Trailing
from unified_tree.declare.page_format import WHOLE, PageFormat, Part


def full(
    *,
    page_size: int,
    bytes_per_token: int = 0,
    page_format: PageFormat | None = None,
    flops_per_token: float = 0.0,
    name: str = "full",
) -> Component:
    """The required `Path` component that owns the pages most others share.

    Args:
        page_size: tokens a page.
        bytes_per_token: bytes one token takes on one rank, summed over the layers this component serves:
            `kv_heads * (key_dim + value_dim) * dtype_bytes` a layer for grouped-query attention, and
            `(kv_lora_rank + qk_rope_head_dim) * dtype_bytes` a layer for latent attention (MLA). Left out with a format.
        page_format: what a page holds; needed to store it.
        flops_per_token: twice the active weights of those layers, over all ranks.
        name: the component's name.

    >>> full(page_size=16, bytes_per_token=32 * 8 * (128 + 128) * 2).page_bytes
    2097152
    """
    return Component(
        name=name,
        coverage=Path(),
        page_bytes=page_size * bytes_per_token,
        flops_per_token=flops_per_token,
        format=page_format,
    )


def swa(
    *,
    page_size: int,
    window_tokens: int,
    layers: int,
    bytes_per_token: int = 0,
    page_format: PageFormat | None = None,
    flops_per_token: float = 0.0,
    exact_rebuild: bool = True,
    name: str = "swa",
) -> Component:
    """The `Trailing` component of all layers that share one window.

    A missing window is rebuilt exactly by running the last `layers * window_tokens` tokens again while the full layers
    read their cached pages: each window layer needs its own window to be exact before the next one can be.

    Args:
        page_size: tokens a page.
        window_tokens: *past* tokens the next one needs; a config's `sliding_window` counts the query too, so it is
            one more.
        layers: how many layers have this window.
        bytes_per_token: bytes one token takes on one rank, summed over those layers. Left out with a format.
        page_format: what a page holds; needed to store it.
        flops_per_token: twice the active weights of those layers, over all ranks.
        exact_rebuild: False where such a rebuild is not known to be exact.
        name: the component's name; models of several windows need one component a window.

    >>> swa(page_size=64, window_tokens=127, layers=18, bytes_per_token=36864).rebuild_tokens
    2286
    """
    return Component(
        name=name,
        coverage=Trailing(window_tokens),
        page_bytes=page_size * bytes_per_token,
        flops_per_token=flops_per_token,
        rebuild_tokens=layers * window_tokens if exact_rebuild else None,
        format=page_format,
    )


def indexer(
    *,
    page_size: int,
    bytes_per_slot: int = 0,
    page_format: PageFormat | None = None,
    tokens_per_slot: int = 1,
    shares: str = "full",
    flops_per_token: float = 0.0,
    name: str = "indexer",
) -> Component:
    """The required `Path` component of index keys, in the device pages of the KV they index.

    Source: the lightning indexer of DeepSeek-V3.2 (one key of `index_head_dim` a token and layer, shared by all index
    heads, so it is replicated over ranks) and of DeepSeek-V4 (one key every four tokens).

    Args:
        page_size: tokens a page.
        bytes_per_slot: bytes of one key, summed over the layers that run an indexer of their own. Left out with a format.
        page_format: what a page holds; needed to store it.
        tokens_per_slot: tokens one key stands for.
        shares: the component whose device pages hold the keys.
        flops_per_token: twice the indexers' weights, over all ranks.
        name: the component's name.
    """
    return compressed(
        page_size=page_size,
        tokens_per_slot=tokens_per_slot,
        bytes_per_slot=bytes_per_slot,
        page_format=page_format,
        shares=shares,
        flops_per_token=flops_per_token,
        name=name,
    )


def compressed(
    *,
    page_size: int,
    tokens_per_slot: int,
    bytes_per_slot: int = 0,
    page_format: PageFormat | None = None,
    shares: str | None = None,
    flops_per_token: float = 0.0,
    name: str | None = None,
) -> Component:
    """The required `Path` component of one compression ratio.

    Args:
        page_size: tokens a page, a multiple of `tokens_per_slot`.
        tokens_per_slot: tokens one entry stands for.
        bytes_per_slot: bytes of one entry, summed over the layers of this ratio: `head_dim * dtype_bytes` a layer, one
            vector being key and value of all heads. Left out with a format.
        page_format: what a page holds; needed to store it.
        shares: the compressed component whose device pages hold the entries; None to own pages.
        flops_per_token: twice the active weights of those layers, over all ranks.
        name: `c4` for 4:1, and so on, when None.

    >>> compressed(page_size=128, tokens_per_slot=4, bytes_per_slot=1024).page_bytes
    32768
    """
    return Component(
        name=f"c{tokens_per_slot}" if name is None else name,
        coverage=Path(),
        tokens_per_slot=tokens_per_slot,
        page_bytes=page_size // tokens_per_slot * bytes_per_slot,
        flops_per_token=flops_per_token,
        shares=shares,
        format=page_format,
    )


def overlap(
    *,
    window_tokens: int,
    state_bytes: int = 0,
    page_format: PageFormat | None = None,
    shares: str = "swa",
    name: str = "overlap",
) -> Component:
    """The required `Trailing` component of the overlap that follows the window, one state a page.

    No rebuild is declared: rebuilding it was not tried.

    Args:
        window_tokens: tokens of one compressed entry, whose contribution to the next entry the state is.
        state_bytes: bytes of the state at one boundary, summed over the overlapping layers: kv and gate,
            `2 * window_tokens * (head_dim + index_head_dim) * dtype_bytes` a layer. Left out with a format.
        page_format: what a page holds; needed to store it.
        shares: the component whose device pages hold the state.
        name: the component's name.
    """
    return Component(name=name, coverage=Trailing(window_tokens), page_bytes=state_bytes, shares=shares, format=page_format)


MARK = Part("mark", "uint8", (1,))
"""The only content of a page: a placeholder, which is neither written nor read."""


def token_path(*, name: str = "tokens") -> Component:
    """The required `Path` component of a model in which no layer attends to the whole prefix.

    A tree identifies a prefix by its path's pages. Here a page is one byte without state, so that pools, host memory and stores
    treat it as any other. Their number bounds how many tokens the tree remembers. A boundary, a length one can resume from,
    still needs the windows or states.

    Args:
        name: the component's name.

    >>> token_path().page_bytes
    1
    """
    page_format = PageFormat(component=name, layer_ids=(0,), parts=(MARK,), slots_per_page=1, shard=WHOLE)
    return Component(name=name, coverage=Path(), format=page_format)


def is_token_path(component: Component) -> bool:
    """Whether a component is a `token_path`, whose pages are worth keeping only for the windows or states along them."""
    return component.format is not None and component.format.parts == (MARK,)


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
