"""torch, for the modules that cannot do without it; where it is missing, importing them says which extra brings it."""

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "pools of tensors, and what copies between them, need torch: pip install 'unified-tree[tensors]'", name="torch"
    ) from error

__all__ = ["torch"]
