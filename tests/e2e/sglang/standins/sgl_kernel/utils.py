"""What sgl-kernel says of the GPU."""

from __future__ import annotations

from sgl_kernel import Absent, absent


def is_arch_support_pdl() -> bool:
    """Whether a kernel may start before the one before it has ended: none here does."""
    return False


def __getattr__(name: str) -> Absent:
    return absent("sgl_kernel.utils", name)
