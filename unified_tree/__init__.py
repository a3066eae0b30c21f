"""A prefix cache for hybrid language models: one radix tree over every kind of attention state."""

from unified_tree.component import Component
from unified_tree.coverage import Coverage, Path, Point, Trailing
from unified_tree.effect import Copy, Effect, EffectKind
from unified_tree.errors import (
    ConfigurationError,
    EffectError,
    InsertError,
    InvalidKeyError,
    LeaseError,
    OutOfPagesError,
    PageError,
    ReceiptError,
    StaleBoundaryError,
    TraceError,
    TransferError,
    UnifiedTreeError,
)
from unified_tree.eviction_policy import AdmissionPolicy, EvictionPolicy, PolicyFactory
from unified_tree.explain import Explanation, Loss
from unified_tree.grafting import GraftResult
from unified_tree.invariants import Violation
from unified_tree.keys import Key
from unified_tree.node import NodeId, PageId, Tier
from unified_tree.page_format import WHOLE, PageFormat, Part, Shard
from unified_tree.policies import POLICIES, policy_names
from unified_tree.receipt import NOWHERE, Boundary, EvictResult, InsertResult, Match, Receipt
from unified_tree.settings import TreeSettings
from unified_tree.transfers import Transfers
from unified_tree.tree import UnifiedTree

__all__ = [
    "NOWHERE",
    "POLICIES",
    "WHOLE",
    "AdmissionPolicy",
    "Boundary",
    "Component",
    "ConfigurationError",
    "Copy",
    "Coverage",
    "Effect",
    "EffectError",
    "EffectKind",
    "EvictResult",
    "EvictionPolicy",
    "Explanation",
    "GraftResult",
    "InsertError",
    "InsertResult",
    "InvalidKeyError",
    "Key",
    "LeaseError",
    "Loss",
    "Match",
    "NodeId",
    "OutOfPagesError",
    "PageError",
    "PageFormat",
    "PageId",
    "Part",
    "Path",
    "Point",
    "PolicyFactory",
    "Receipt",
    "ReceiptError",
    "Shard",
    "StaleBoundaryError",
    "Tier",
    "TraceError",
    "Trailing",
    "TransferError",
    "Transfers",
    "TreeSettings",
    "UnifiedTree",
    "UnifiedTreeError",
    "Violation",
    "policy_names",
]
