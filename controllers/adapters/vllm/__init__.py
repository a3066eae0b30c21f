"""vLLM's KV connector: a host tier and stores of this library behind a vLLM engine. `connector.UnifiedTreeConnector` is what
vLLM loads by module path; only that module, `engine_config` and `connector_stats` import vllm, and only `block_pages`,
`weight_digests` and `worker_side` import torch.

The scheduler side (`SchedulerSide`) owns what is known: a `UnifiedTree` over host pages in a `HostIndex`, the free lists,
eviction, and the locks on what a load reads. A page of the tree is one vLLM block of every KV cache group, and a group is a
component: full attention a `Path`, a sliding window `Trailing` over its past tokens, a Mamba state a `Point`. The worker side
(`WorkerSide`) owns bytes: host tensors per layer, and the copies between them and vLLM's KV cache. A `StepPlan` goes from the
first to the second with every engine step, block ids beside host page ids for each group; a `StepReport` comes back.

A step's saves are the whole blocks that the step completes and the tree lacks. Their source blocks belong to a scheduled
request while the step runs; the worker copies them before the step ends, so no block has to be kept for them. The tree learns
of them only when every worker has reported them done: a match never finds a page that is still being written. Loads run beside
the model in a thread of the worker; the scheduler side locks their pages until every worker has reported. With tensor
parallelism each worker has host pages of its own under the same ids.

With pipeline stages each worker holds the layers of its stage, under a shard of its own. All of them have pages for every
group, as the scheduler side plans one copy for all: where a stage has no layer of a group, a page is a mark of some bytes that
says that the stage has saved it. The workers tell each other how large their blocks are, so that all count the same pages, and
vLLM hands the same to the scheduler side before the first request.

A draft model's layers are in blocks of the same groups, and a step's saves are made when it has drafted. A head that reads a
token with the next one (EAGLE, MTP) fills the last place of a block from the token behind the block. There keys are pairs of
tokens, so that a block depends on that token, too; vLLM's own cache drops the last block of each hit instead.

With a store every worker has one of its own over its host pages (`WorkerStore`), under keys that name its shard. The scheduler
side is the library's `StorageController` over the same tree (`SchedulerStore`); its jobs are messages to all workers, which go
with the `StepPlan` and are answered with the `StepReport` (`RemoteStoreJobs`). A length is fetched only if every worker's store
has it, and comes into the tree when every worker has read it. What is read or written is locked, or not in the tree, until
every worker has answered. A request that arrives waits for its fetch as `PrefetchPolicy` says, then loads from host as any.
Saved boundaries are queued to be written, some at a time. Cost: a message and an answer for a look-up, for each portion of
pages and for each boundary; the workers hash.

vLLM resets the connector when it goes to sleep, and does not say why. The scheduler side sets the host tier aside at a reset,
and asks the workers with the next plan. They hear of the sleep, and have a digest of the weights' memory. If all of them slept
and no digest changed, the tier goes on; else it is forgotten. Cost: a pass over the weights at the start and after each reset,
with sleep mode enabled only.

Rejected: the store's work in the scheduler's process, over host pages in shared memory. It would be less code, but that process
would carry the input and output of all workers, and workers on other machines could have no store.

Rejected: a hash table over blocks, as vLLM's own offloading has. It answers for each group alone, and the connector would have
to intersect windows, states and paths itself; the tree returns a length from which all groups resume.
"""

from unified_tree.controllers.adapters.vllm.block_group import BlockGroup, page_counts
from unified_tree.controllers.adapters.vllm.connector_settings import TESTED_VERSIONS, ConnectorSettings, require_tested
from unified_tree.controllers.adapters.vllm.host_index import HostEvent, HostEvents, HostIndex
from unified_tree.controllers.adapters.vllm.messages import Job, PageCopies, StepPlan, StepReport
from unified_tree.controllers.adapters.vllm.scheduler_side import EngineRequest, ScheduledRequest, SchedulerSide

__all__ = [
    "TESTED_VERSIONS",
    "BlockGroup",
    "ConnectorSettings",
    "EngineRequest",
    "HostEvent",
    "HostEvents",
    "HostIndex",
    "Job",
    "PageCopies",
    "ScheduledRequest",
    "SchedulerSide",
    "StepPlan",
    "StepReport",
    "page_counts",
    "require_tested",
]
