"""`UnifiedTreeConnector`, which vLLM loads by module path. It translates vLLM's calls into those of `SchedulerSide` and
`WorkerSide`; see the package's description for who owns what. Either side exists once in its process, never both. With
pipeline stages the scheduler's side begins when vLLM has told it the block sizes of all of them.
"""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import vllm
from torch.distributed import all_gather_object
from vllm.device_allocator import get_mem_allocator_instance
from vllm.distributed import get_pp_group, get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.distributed.kv_events import MEDIUM_CPU, AllBlocksCleared, BlockRemoved, BlockStored
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.logger import init_logger
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash
from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from unified_tree.components import Composition
from unified_tree.controllers.adapters.vllm.block_group import over_stages, page_counts
from unified_tree.controllers.adapters.vllm.block_pages import BlockPages
from unified_tree.controllers.adapters.vllm.connector_settings import ConnectorSettings, require_tested
from unified_tree.controllers.adapters.vllm.connector_stats import ConnectorMetrics, ConnectorStats
from unified_tree.controllers.adapters.vllm.engine_config import (
    block_groups,
    config_digest,
    has_weights_on_host,
    keys_are_pairs,
    model_name,
    namespace_of,
    refuse_unsupported,
)
from unified_tree.controllers.adapters.vllm.engine_request import ScheduledRequest
from unified_tree.controllers.adapters.vllm.host_index import HostEvent, HostIndex
from unified_tree.controllers.adapters.vllm.host_sessions import said_of, tenant_of
from unified_tree.controllers.adapters.vllm.messages import StepPlan, StepReport
from unified_tree.controllers.adapters.vllm.scheduler_side import SchedulerSide
from unified_tree.controllers.adapters.vllm.scheduler_store import SchedulerStore
from unified_tree.controllers.adapters.vllm.weight_digests import LoraFiles, weights_digest
from unified_tree.controllers.adapters.vllm.worker_side import WorkerSide
from unified_tree.controllers.adapters.vllm.worker_store import WorkerStore
from unified_tree.controllers.counters.observers import open_observers
from unified_tree.controllers.storage_tier.store_settings import weights_version
from unified_tree.declare.page_format import Shard

logger = init_logger("vllm.unified_tree")  # vLLM shows no other's


@dataclass
class PlanMetadata(KVConnectorMetadata):  # type: ignore[misc, unused-ignore]
    """A step's plan, on its way to the workers."""

    plan: StepPlan = field(default_factory=StepPlan)


@dataclass
class ReportMetadata(KVConnectorWorkerMetadata):  # type: ignore[misc, unused-ignore]
    """A worker's report, on its way back."""

    report: StepReport = field(default_factory=StepReport)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """Both reports in one."""
        return ReportMetadata(self.report.merge(other.report))


@dataclass
class BlockSizes(KVConnectorHandshakeMetadata):  # type: ignore[misc, unused-ignore]
    """`BlockGroup.block_bytes` of a worker's groups, which vLLM gives to the scheduler when all workers have started."""

    sizes: tuple[int, ...] = ()


class UnifiedTreeConnector(KVConnectorBase_V1, SupportsHMA):  # type: ignore[misc, unused-ignore]
    """A host tier behind vLLM's prefix cache, for models of full attention, sliding windows and recurrent states.

    Raises ConfigurationError for another version of vLLM, settings that are not valid, and what `refuse_unsupported` and
    `block_groups` refuse.
    """

    _cache_hit_source = CacheHitSource.HOST

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        require_tested(vllm.__version__)  # pyright: ignore[reportAttributeAccessIssue]
        super().__init__(vllm_config, role, kv_cache_config)
        settings = ConnectorSettings.of(vllm_config.kv_transfer_config.kv_connector_extra_config)
        self._settings = settings
        groups, self._block_tokens = block_groups(kv_cache_config)
        refuse_unsupported(vllm_config, groups)
        self._groups = groups
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        self._requests: dict[str, Any] = {}
        self._loras = LoraFiles()
        if role is KVConnectorRole.WORKER:
            self._worker = WorkerSide(
                groups, self._page_counts(_of_all_stages(self._sizes)), verify=settings.verify, shard=_shard(),
                open_store=None if settings.store is None else self._open_store,
                weights=partial(weights_digest, get_mem_allocator_instance()) if self._may_sleep(vllm_config) else lambda: None,
            )  # fmt: skip
        elif not self._has_stages:
            self._scheduler = self._open_scheduler([self._sizes])

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        """True: views of vLLM's cache are given back before it loses its memory, and taken anew."""
        del kv_transfer_config
        return True

    @property
    def requires_kv_delivery(self) -> bool:
        """False: a save that is lost is a hit less, and no request waits for it."""
        return False

    @property
    def scheduler_side(self) -> SchedulerSide:
        """Of a connector in the scheduler."""
        assert self._scheduler is not None, "this connector is a worker's"
        return self._scheduler

    @property
    def worker_side(self) -> WorkerSide:
        """Of a connector in a worker."""
        assert self._worker is not None, "this connector is the scheduler's"
        return self._worker

    # The sizes of the blocks of all pipeline stages.

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """The sizes of this worker's blocks; None without pipeline stages."""
        return BlockSizes(self._sizes) if self._has_stages else None

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Mapping[tuple[int, int], Any]) -> None:
        """Begin the scheduler's side, when vLLM starts; it says the same after a sleep."""
        if self._scheduler is None:
            self._scheduler = self._open_scheduler([each.sizes for each in metadata.values()])

    # The scheduler's calls, in the order of an engine step.

    def on_new_request(self, request: Any) -> None:
        """Serve a request, unless the weights of its LoRA may be others than its files say."""
        lora = request.lora_request
        version = "" if lora is None else self._loras.version(lora)
        if version is not None:
            self._requests[request.request_id] = request
            is_storable, (session, given) = lora is None or version != "", said_of(request)
            self.scheduler_side.begin(
                request, namespace_of(request, version), is_storable=is_storable, session=session, given=given
            )

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens can be loaded, always beside the model; None while the request has to wait, and vLLM asks again."""
        tokens = self.scheduler_side.matched_tokens(request, num_computed_tokens)
        return tokens, bool(tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Load into the blocks that vLLM allocated for the hit, in this step or an earlier one."""
        if num_external_tokens:
            self.scheduler_side.load(request.request_id, blocks.get_block_ids(), num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """The step's copies."""
        return PlanMetadata(self.scheduler_side.plan(self._scheduled(scheduler_output)))

    def update_connector_output(self, connector_output: Any) -> None:
        """What the workers have done comes into the tree."""
        reported = connector_output.kv_connector_worker_meta
        if reported is not None:
            self.scheduler_side.complete(reported.report)

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> tuple[bool, dict[str, Any] | None]:
        """Its blocks are free at once: saves end with their step, and vLLM itself waits for a load."""
        del block_ids
        self._requests.pop(request.request_id, None)
        self.scheduler_side.end(request.request_id)
        return False, None

    def has_pending_push_work(self) -> bool:
        """Whether the store is at work; vLLM makes further steps until it is not."""
        return self.scheduler_side.has_work

    def take_events(self) -> Iterable[Any]:
        """vLLM's events, medium CPU."""
        return [self._vllm_event(event) for event in self.scheduler_side.take_events()]

    def reset_cache(self) -> bool:
        """Forget everything, unless vLLM goes to sleep and wakes up with the same weights."""
        self.scheduler_side.reset()
        return True

    # The worker's calls.

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Allocate the host pages for vLLM's cache."""
        self.worker_side.register(kv_caches, self._kv_cache_config.num_blocks)

    def unregister_kv_caches(self) -> None:
        """Give vLLM's cache back, which is about to lose its memory."""
        self.worker_side.give_back()

    def restore_kv_caches(self) -> None:
        """Take vLLM's cache again."""
        self.worker_side.restore()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Begin the step's loads, and what the store is asked for."""
        del forward_context, kwargs
        plan = self._plan()
        if plan.reset_job is not None:
            self.worker_side.answer_reset(plan.reset_job, plan.resets)
        self.worker_side.start_loads(plan.loads)
        self.worker_side.start_store(plan.messages)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: a request is not scheduled before its load has ended."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Nothing: whole blocks are saved when the step has computed all layers."""

    def wait_for_save(self) -> None:
        """Make the step's saves, when draft models have written their part of the blocks, too."""
        self.worker_side.save(self._plan().saves)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """The loads that ended. With one group vLLM is told which blocks failed, with several which requests: block ids are
        unique in a group only.
        """
        del finished_req_ids
        received, failed = self.worker_side.take_received()
        by_request = failed if len(self._groups) > 1 else set()
        return KVConnectorTransferResults(finished_recving=received, failed_recving=by_request)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """The blocks that were not loaded; see `get_transfer_results`."""
        bad = self.worker_side.take_bad_blocks()
        return bad if len(self._groups) == 1 else set()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """What this worker has done."""
        report = self.worker_side.take_report()
        return ReportMetadata(report) if report is not None else None

    # Both.

    def get_kv_connector_stats(self) -> ConnectorStats | None:
        """The counters since the last call."""
        side = self._worker if self._worker is not None else self.scheduler_side
        counters = side.take_counters()
        return ConnectorStats(data=dict(counters)) if counters else None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> ConnectorStats:
        """The counters from what was sent between processes."""
        return ConnectorStats(data=data or {})

    @classmethod
    def build_prom_metrics(
        cls, vllm_config: Any, metric_types: Any, labelnames: list[str], per_engine_labelvalues: dict[int, list[object]]
    ) -> ConnectorMetrics:
        """The Prometheus counters."""
        return ConnectorMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """Wait for the loads that run, and break off what the store does."""
        if self._worker is not None:
            self._worker.close()
        if self._scheduler is not None:
            self._scheduler.close()

    @staticmethod
    def _may_sleep(vllm_config: Any) -> bool:
        """Whether vLLM has a sleep mode, tells the workers' connectors of it, and its allocator knows all weights."""
        is_told = hasattr(KVConnectorBase_V1, "unregister_kv_caches")
        return is_told and vllm_config.model_config.enable_sleep_mode and not has_weights_on_host(vllm_config)

    @property
    def _has_stages(self) -> bool:
        return bool(self._vllm_config.parallel_config.pipeline_parallel_size > 1)

    @property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(group.block_bytes for group in self._groups)

    def _page_counts(self, stages: Sequence[Sequence[int]]) -> dict[str, int]:
        """Host pages by component: the same in all workers."""
        groups, settings = over_stages(self._groups, stages), self._settings
        return page_counts(groups, self._block_tokens, settings.host_bytes, settings.boundary_tokens)

    def _open_scheduler(self, stages: Sequence[Sequence[int]]) -> SchedulerSide:
        settings, config = self._settings, self._vllm_config
        events, workers = config.kv_events_config, config.parallel_config.world_size
        tenants = None if settings.tenants is None else replace(settings.tenants, named_by=tenant_of)
        index = HostIndex(
            over_stages(self._groups, stages), self._block_tokens, self._page_counts(stages), settings.policy,
            settings.miss_memory_mib << 20, tenants,
        )  # fmt: skip
        side = SchedulerSide(
            index,
            worker_count=workers,
            min_load_tokens=settings.min_load_tokens,
            hash_tokens=self._hash_tokens() if events is not None and events.enable_kv_cache_events else None,
            store=None if settings.store is None else self._scheduler_store(index, workers),
            inspector=settings.inspector,
            observers=open_observers(settings.observers),
            asks_after_sleep=self._may_sleep(config),
            infers=settings.infer_sessions,
            has_paired_keys=keys_are_pairs(config),
        )
        if settings.inspector is not None and side.page is not None:
            logger.info("%s", settings.inspector.line(side.page))
        return side

    def _scheduler_store(self, index: HostIndex, workers: int) -> SchedulerStore:
        store, model = self._settings.store, self._vllm_config.model_config
        assert store is not None
        version = store.weights_version or weights_version(model.model, model.revision or "")
        return SchedulerStore(index, workers, version, self._settings.prefetch_policy())

    def _open_store(self, pages: Mapping[str, BlockPages]) -> WorkerStore:
        store = self._settings.store
        assert store is not None
        composition = Composition(
            name=model_name(self._vllm_config),
            page_size=self._block_tokens,
            components=tuple(replace(group.component, format=pages[group.name].pool.format) for group in self._groups),
            config_digest=config_digest(self._vllm_config, self._kv_cache_config),
        )
        return WorkerStore.open(composition, pages, store, _shard())

    def _plan(self) -> StepPlan:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, PlanMetadata)
        return metadata.plan

    def _scheduled(self, output: Any) -> Iterable[ScheduledRequest]:
        """The step's requests. Their own counts are those before the step; drafted tokens may be rejected after it."""
        state, drafts = output.kv_connector_block_state, self._vllm_config.speculative_config is not None
        for request_id, tokens in output.num_scheduled_tokens.items():
            request = self._requests.get(request_id)
            if request is not None and request_id in state.req_ids:
                end = request.num_computed_tokens + tokens
                yield ScheduledRequest(
                    request_id=request_id,
                    end_tokens=min(end, request.num_tokens) if drafts else end,
                    block_table=partial(state.get_block_ids, request_id),
                    states=state.boundary_state_offloads.get(request_id, ()),
                )

    def _hash_tokens(self) -> int:
        return int(self._kv_cache_config.hash_block_size or self._block_tokens)

    def _vllm_event(self, event: HostEvent) -> Any:
        group = next(group.index for group in self._groups if group.coverage.is_path)
        hashes = [maybe_convert_block_hash(name) for name in event.hashes]
        if not event.stored:
            return BlockRemoved(block_hashes=hashes, medium=MEDIUM_CPU, group_idx=group) if hashes else AllBlocksCleared()
        parent = maybe_convert_block_hash(event.parent) if event.parent is not None else None
        return BlockStored(
            block_hashes=hashes,
            parent_block_hash=parent,
            token_ids=list(event.tokens),
            block_size=self._block_tokens,
            lora_id=None,
            medium=MEDIUM_CPU,
            lora_name=None,
            group_idx=group,
            kv_cache_spec_kind=get_kv_cache_spec_kind(self._kv_cache_config.kv_cache_groups[group].kv_cache_spec).value,
        )


def _shard() -> Shard:
    """The part of the model that this worker has: one of those into which tensor parallelism divides its pipeline stage."""
    stage, parts = get_pp_group(), get_tensor_model_parallel_world_size()
    return Shard(stage.rank_in_group * parts + get_tensor_model_parallel_rank(), stage.world_size * parts)


def _of_all_stages(sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The block sizes of all pipeline stages. Their workers ask at the same time, as vLLM starts them together."""
    group = get_pp_group()
    found: list[Any] = [sizes] * group.world_size
    if group.world_size > 1:
        all_gather_object(found, sizes, group=group.cpu_group)
    return found
