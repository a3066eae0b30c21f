"""A prefix cache for hybrid language models: one radix tree over every kind of attention state.

Start at `unified_tree.controllers.PrefixCache`, which a scheduler calls, with a model from `unified_tree.components`. This
package is the tree below it: `UnifiedTree`, its `Key`s, `Component`s and results, pure bookkeeping without tensors or threads.
A match ends at a *boundary*, a length one can resume from: every kind of state that the model requires is there. The protocol
`EvictionPolicy`, with the `Value`s that it ranks, is for policies of your own. All errors are `UnifiedTreeError`s.
`is_compiled` is True where the hot modules run compiled, and False where they run interpreted.
"""

from unified_tree.build import is_compiled, say_build
from unified_tree.checks.invariants import Violation
from unified_tree.declare.block_budget import BlockBudget
from unified_tree.declare.component import Component
from unified_tree.declare.coverage import Chunked, Coverage, Path, Point, Trailing
from unified_tree.declare.keys import Key
from unified_tree.declare.page_format import WHOLE, ContextShard, PageFormat, Part, Shard
from unified_tree.declare.settings import TreeSettings
from unified_tree.declare.tenants import Amount, TenantGroup, Tenants
from unified_tree.inserts.grafting import GraftResult
from unified_tree.locks.locks import Receipt
from unified_tree.misses.causes import Miss
from unified_tree.misses.explain import Explanation, Loss
from unified_tree.misses.miss_cause import MissCause
from unified_tree.nodes.effect import Copy, Effect, EffectKind
from unified_tree.nodes.line import Eviction
from unified_tree.nodes.node import Value
from unified_tree.policies.eviction_policy import AdmissionPolicy, EvictionPolicy, PolicyFactory
from unified_tree.policies.table import POLICIES, policy_names
from unified_tree.policies.tree_view import TreeView
from unified_tree.terms.errors import (
    ConfigurationError,
    DivergenceError,
    EffectError,
    InsertError,
    InvalidKeyError,
    LeaseError,
    LinkError,
    OutOfPagesError,
    PageError,
    RankError,
    RankTimeoutError,
    ReceiptError,
    StaleBoundaryError,
    StorageError,
    TicketError,
    TraceError,
    TransferError,
    UnifiedTreeError,
)
from unified_tree.terms.results import NOWHERE, Boundary, EvictResult, InsertResult, Match
from unified_tree.terms.tier import NodeId, PageId, Tier
from unified_tree.transfers.transfers import Transfers
from unified_tree.tree import UnifiedTree

__all__ = [
    "NOWHERE",
    "POLICIES",
    "WHOLE",
    "AdmissionPolicy",
    "Amount",
    "BlockBudget",
    "Boundary",
    "Chunked",
    "Component",
    "ConfigurationError",
    "ContextShard",
    "Copy",
    "Coverage",
    "DivergenceError",
    "Effect",
    "EffectError",
    "EffectKind",
    "EvictResult",
    "Eviction",
    "EvictionPolicy",
    "Explanation",
    "GraftResult",
    "InsertError",
    "InsertResult",
    "InvalidKeyError",
    "Key",
    "LeaseError",
    "LinkError",
    "Loss",
    "Match",
    "Miss",
    "MissCause",
    "NodeId",
    "OutOfPagesError",
    "PageError",
    "PageFormat",
    "PageId",
    "Part",
    "Path",
    "Point",
    "PolicyFactory",
    "RankError",
    "RankTimeoutError",
    "Receipt",
    "ReceiptError",
    "Shard",
    "StaleBoundaryError",
    "StorageError",
    "TenantGroup",
    "Tenants",
    "TicketError",
    "Tier",
    "TraceError",
    "Trailing",
    "TransferError",
    "Transfers",
    "TreeSettings",
    "TreeView",
    "UnifiedTree",
    "UnifiedTreeError",
    "Value",
    "Violation",
    "is_compiled",
    "policy_names",
]

say_build()
