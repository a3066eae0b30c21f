"""The consensus of ranks that share a cache. With one message per tick they agree on which lengths all can restore, and which
operations all have finished. Start at `DistributedConsensus` over torch.distributed, and give it to `PrefixCache(ranks=...)`;
`LocalConsensus` is that of a single rank. `RankWatch` names a rank that is stopped or has died. Another transport implements
`Reduction` below `TickedConsensus`.
"""

from typing import TYPE_CHECKING, Any

from unified_tree.controllers.ranks.consensus import Agreement, Consensus, Decision, Finished
from unified_tree.controllers.ranks.message import MessageShape
from unified_tree.controllers.ranks.rank_watch import RankWatch
from unified_tree.controllers.ranks.ticked_consensus import LocalConsensus, Reduction, TickedConsensus

if TYPE_CHECKING:
    from unified_tree.controllers.ranks.distributed_consensus import DistributedConsensus

__all__ = [
    "Agreement",
    "Consensus",
    "Decision",
    "Finished",
    "LocalConsensus",
    "MessageShape",
    "RankWatch",
    "Reduction",
    "TickedConsensus",
]
if TYPE_CHECKING:
    __all__ += ["DistributedConsensus"]  # not without extras: a star import would fail


def __getattr__(name: str) -> Any:
    if name == "DistributedConsensus":  # needs torch
        from unified_tree.controllers.ranks.distributed_consensus import DistributedConsensus

        return DistributedConsensus
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
