"""The five findings that matter: what costs a cache its hits, and which setting changes that.

`Figures` are what a diagnosis needs of a cache, as JSON; `findings` reads them. `unified-tree doctor` prints them for a file of
figures, for what a running cache answers, or for the rows of a replay.
"""

from __future__ import annotations

from unified_tree.controllers.doctor.figures import REJECTED, Figures, PoolFigures
from unified_tree.controllers.doctor.findings import Finding, findings

__all__ = ["REJECTED", "Figures", "Finding", "PoolFigures", "findings"]
