"""The memory of a composition on device and host, and the engine between them.

Start at `tensor_tiers`, which needs torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unified_tree.controllers.tiers.tensor_memory import TensorTiers, tensor_tiers

__all__: list[str] = []
if TYPE_CHECKING:
    __all__ += ["TensorTiers", "tensor_tiers"]  # not without extras: a star import would fail


def __getattr__(name: str) -> Any:
    if name in ("TensorTiers", "tensor_tiers"):
        from importlib import import_module

        return getattr(import_module("unified_tree.controllers.tiers.tensor_memory"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
