"""The pages that vLLM gives a model with recurrent states: attention's as large as a state's, layer by layer.

vLLM allocates one kind of page for all layers. It raises the tokens of an attention block until a layer's page holds a state,
in steps of what the attention kernel takes, and pads the states' pages to that size. With its prefix cache on, a prompt resumes
at the ends of these blocks, and each block saved has a state in every recurrent layer. The rule is that of
`Platform._align_hybrid_block_size` in vLLM 0.33; `benches/studies/engine_bytes.py` compares it with that code.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from unified_tree.components.composition import Composition
from unified_tree.components.families.states import DTYPE_NOTE
from unified_tree.declare.page_format import PageFormat

DEFAULT_BLOCK_TOKENS = 16
"""Tokens of a block where nothing asks for more; FlashAttention's kernels take multiples of it."""
LATENT_BLOCK_TOKENS = 128
"""The least step for latents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualPages:
    """One layer's pages.

    Attributes:
        block_tokens: tokens of an attention block.
        page_bytes: bytes of an attention block, and of a state with its padding, in one layer.
        state_bytes: what the state itself takes of these.
        attention_layers, state_layers: how many layers have such pages.
    """

    block_tokens: int
    page_bytes: int
    state_bytes: int
    attention_layers: int
    state_layers: int

    @property
    def boundary_bytes(self) -> int:
        """Bytes of the states that one boundary keeps, padding included."""
        return self.page_bytes * self.state_layers

    @property
    def padding_share(self) -> float:
        """The part of a state's page that is padding."""
        return 1 - self.state_bytes / self.page_bytes


def equal_pages(model: Composition) -> EqualPages | None:
    """What vLLM makes of a model's attention and states; None for a model that lacks one of them.

    The states are of the composition's dtypes: vLLM keeps recurrent states in the model's dtype by default, which
    `state_dtype` says. Cost: O(layers).

    >>> from unified_tree.components import composition_for
    >>> found = equal_pages(composition_for("qwen3-next-80b-a3b", state_dtype="bfloat16"))
    >>> found.block_tokens, found.page_bytes
    (544, 1114112)
    """
    token_bytes: dict[int, int] = {}
    state_bytes: dict[int, int] = {}
    is_latent = False
    for component in model.components:
        kept = component.format
        if kept is None or component.name in ("draft", "tokens") or component.name.startswith("indexer"):
            continue
        of_layer = state_bytes if component.coverage.is_exact else token_bytes
        is_latent = is_latent or (of_layer is token_bytes and _keeps_latents(kept))
        for layer_id in kept.layer_ids:
            of_layer[layer_id] = of_layer.get(layer_id, 0) + sum(part.row_bytes for part in kept.parts)
    if not token_bytes or not state_bytes:
        return None
    token, state = max(token_bytes.values()), max(state_bytes.values())
    step = LATENT_BLOCK_TOKENS if is_latent else DEFAULT_BLOCK_TOKENS
    block_tokens = max(DEFAULT_BLOCK_TOKENS, step * -(-state // (step * token)))
    return EqualPages(
        block_tokens=block_tokens,
        page_bytes=block_tokens * token,
        state_bytes=state,
        attention_layers=len(token_bytes),
        state_layers=len(state_bytes),
    )


def for_vllm(served: Composition, read: Callable[[str], Composition]) -> Composition:
    """A model in the dtypes in which vLLM keeps it by default.

    Args:
        served: as read, which says so where vLLM keeps recurrent states in another dtype.
        read: the same model with its `state_dtype`.
    """
    if DTYPE_NOTE not in served.notes:
        return served
    convolutions = [
        part.dtype
        for component in served.components
        if component.format is not None
        for part in component.format.parts
        if part.name.startswith("conv")
    ]
    return read(convolutions[0]) if convolutions else served


def _keeps_latents(kept: PageFormat) -> bool:
    """Whether these are MLA's latents, which all heads share."""
    return all(len(part.shape) == 1 for part in kept.parts)
