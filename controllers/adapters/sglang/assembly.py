"""Puts a cache together: what SGLang's arguments and our settings ask for, in the pools that SGLang has allocated."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

import torch

from unified_tree.components import Composition
from unified_tree.controllers.adapters.sglang.device_pools import STATE
from unified_tree.controllers.adapters.sglang.engine_tensors import DRAFT, RankParts, engine_tensors, last_layer
from unified_tree.controllers.adapters.sglang.kept_store import KeptStore
from unified_tree.controllers.adapters.sglang.settings import VARIABLE, HostSettings, Settings
from unified_tree.controllers.adapters.sglang.tiers import Tiers, host_memory
from unified_tree.controllers.host.host_tier import WritePolicy
from unified_tree.controllers.ranks.rank_agreement import MultiRank, SingleRank
from unified_tree.controllers.storage_tier.store_settings import StoreSettings, weights_version
from unified_tree.declare.component import Component
from unified_tree.declare.coverage import Path, Point
from unified_tree.declare.page_format import Shard
from unified_tree.inputs.given_files import NotJsonError, parse_json
from unified_tree.terms.errors import ConfigurationError, StorageError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from unified_tree.controllers.adapters.sglang.device_pools import DevicePools
    from unified_tree.controllers.adapters.sglang.device_tier import DeviceTier
    from unified_tree.controllers.adapters.sglang.engine_tensors import EngineTensors
    from unified_tree.controllers.counters.cache_counters import CacheCounters
    from unified_tree.controllers.pools.host_pool import HostPool
    from unified_tree.controllers.ranks import RankWatch
    from unified_tree.controllers.ranks.rank_agreement import RankAgreement
    from unified_tree.controllers.storage_tier import StorageTier
    from unified_tree.controllers.transfer_engines.cuda_engine import Lane
    from unified_tree.nodes.effect import EffectKind
    from unified_tree.tree import UnifiedTree

logger = logging.getLogger(__name__)
COMPUTED_BY: Final = (
    "dtype",
    "load_format",
    "quantization",
    "quantization_param_path",
    "modelopt_quant",
    "rl_quant_profile",
    "json_model_override_args",
    "model_impl",
    "revision",
    "speculative_draft_load_format",
    "speculative_draft_model_quantization",
    "speculative_draft_model_revision",
)
"""SGLang's arguments that change the states that the same files compute. Those of the pages are in their format."""
UNSET: Final = (None, "auto", "{}")


def config_digest(arguments: Any) -> str:
    """A digest of the arguments by which the files of a model compute other states; empty where all are SGLang's defaults."""
    given = {name: getattr(arguments, name, None) for name in COMPUTED_BY}
    given = {name: value for name, value in given.items() if value not in UNSET}
    return sha256(json.dumps(given, sort_keys=True, default=repr).encode()).hexdigest() if given else ""


class TierBuilder:
    """Builds the host tier of a cache, once for each life of its tree.

    Args:
        context: SGLang's `TreeCacheBuildContext`.
        settings: ours.
        watch: over the other ranks; None for a single rank.

    Raises ConfigurationError for pools that a host tier cannot copy.
    """

    def __init__(self, context: Any, settings: Settings, watch: RankWatch | None = None) -> None:
        arguments, params = context.server_args, context.params
        self._stages: int = params.pp_size
        has_divided_tokens = params.attn_cp_size > 1 or arguments.dcp_size > 1
        if self._stages > 1 and (context.is_hybrid_ssm or has_divided_tokens):
            raise ConfigurationError(
                "the host tier does not run with pipeline stages together with recurrent states or context parallelism; "
                "leave --enable-hierarchical-cache out"
            )
        self._group = params.tp_cache_group  # of all ranks that serve the same requests
        if self._stages > 1:
            self._group = over_stages(self._group, params.pp_cache_group)
        self._watch = watch
        self._settings, self._arguments = settings, arguments
        self._page_size = params.page_size
        self._ranks = RankParts.of(context.tp_rank, context.tp_size, copies=params.attn_cp_size, division=arguments.dcp_size)
        own = self._ranks.own
        self._part = Shard(params.pp_rank * own.count + own.index, self._stages * own.count)
        self._tensors = engine_tensors(
            params.token_to_kv_pool_allocator.get_kvcache(),
            params.req_to_token_pool,
            params.page_size,
            self._ranks,
            has_windows=context.is_hybrid_swa,
            has_states=context.is_hybrid_ssm,
            draft_pools=(*params.mtp_draft_device_pools, *params.sidecar_draft_device_pools),
            draft_state_pools=params.mtp_draft_mamba_pools,
        )
        self._lanes = copy_lanes(context, self._tensors, settings)
        size, ratio = arguments.hicache_size, arguments.hicache_ratio
        self._host = settings.host or (HostSettings(gib=size) if size else HostSettings(ratio=ratio))
        self._write_policy = settings.write_policy or WritePolicy(arguments.hicache_write_policy.replace("_", "-"))
        self._memory: dict[str, HostPool] = {}
        self._page_counts: dict[str, int] = {}
        self._model: Composition | None = None
        first_weights = weights_version(arguments.model_path, arguments.weight_version)
        draft = arguments.speculative_draft_model_path if DRAFT in self._tensors else None
        if draft not in (None, arguments.model_path):
            first_weights = weights_version(draft, first_weights)  # another draft would be given pages of this
        self.store = KeptStore(self._open, first_weights, agreed_name(self._group))

    @property
    def layer_count(self) -> int:
        """Layers of the model, up to the last one with pages."""
        return 1 + last_layer(self._tensors)

    def described(self, components: list[Component]) -> list[Component]:
        """The components with the formats of SGLang's pools, and those that share their pages."""
        sharers = [
            Component(
                name=name,
                coverage=Point() if found.shares == STATE else Path(),
                shares=found.shares,
                format=found.format,
            )
            for name, found in self._tensors.items()
            if found.shares is not None
        ]
        return [*(replace(component, format=self._tensors[component.name].format) for component in components), *sharers]

    def page_counts(self, components: Sequence[Component], pools: DevicePools) -> dict[str, int]:
        """The host pages of each component, the same on all ranks, which first call this at the same point.

        Raises ConfigurationError where pipeline stages have other components.
        """
        if not self._page_counts:
            device_pages = {component.name: pools.page_count(component.shares or component.name) for component in components}
            counts = self._host.page_counts(device_pages, {component.name: component.page_bytes for component in components})
            self._page_counts = least_of_all(self._group, counts) if self._stages > 1 else counts
        return self._page_counts

    def build(self, tree: UnifiedTree, device: DeviceTier, pools: DevicePools, counters: CacheCounters) -> Tiers:
        """The tiers of a new tree, whose copies these count; those of the tree before are closed.

        All trees have the same host memory, since it takes long to pin, and the same store.
        """
        is_first = not self._memory
        self._model = Composition(
            name=self._arguments.served_model_name or self._arguments.model_path,
            page_size=self._page_size,
            components=tree.components,
            tensor_parallel=self._ranks.own.count,
            rank=self._ranks.place,
            config_digest=config_digest(self._arguments),
        )
        host_pages = self.page_counts(tree.components, pools)
        self._memory = self._memory or host_memory(self._tensors, host_pages)
        if is_first and self._settings.store is not None:
            self.store.open(self._settings.store, self._arguments.hicache_storage_prefetch_policy)
        tiers = Tiers(
            tree,
            device,
            pools,
            self._tensors,
            self._memory,
            write_policy=self._write_policy,
            counters=counters,
            lanes=self._lanes,
            ranks=self._agreement(),
            has_stages=self._stages > 1,
        )
        self.store.follow(tiers)
        logger.info(
            "unified_tree: host tier on, pages %s, %s; store: %s",
            ", ".join(f"{name} {count:,}" for name, count in host_pages.items()),
            self._write_policy.value,
            self.store.state,
        )
        return tiers

    def _agreement(self) -> RankAgreement:
        """The agreement for a new tree. Stages that lie behind one another must not wait to make a group for it: a flush
        reaches the next stage when it has ended in the one before."""
        if self._stages == 1:
            return rank_agreement(self._group, self._settings.rank_timeout_s, self._watch)
        from unified_tree.controllers.ranks import DistributedConsensus

        assert self._group is not None, "of all stages"
        return MultiRank(DistributedConsensus(self._group, timeout_s=self._settings.rank_timeout_s))

    def open_store(self, given: str | None, prefetch_mode: str | None, write_policy: str | None) -> str:
        """Open a store behind the tiers of the tree that serves, or on no rank; returns its state in words.

        All ranks call this at the same point.

        Args:
            given: the settings of a store, a JSON object; those of the start if None or empty.
            prefetch_mode, write_policy: SGLang's options; None for those of the start. The write policy cannot change.

        Raises ConfigurationError and StorageError.
        """
        error: ConfigurationError | StorageError | None = None
        if self._stages > 1:
            raise ConfigurationError("pipeline stages cannot agree on a store while they serve; name it at the start")
        try:
            settings = self._store_settings(given, write_policy)
            self.store.open(settings, prefetch_mode or self._arguments.hicache_storage_prefetch_policy)
        except (ConfigurationError, StorageError) as found:
            error = found
        if not all_ranks(self._group, holds=error is None):
            if error is None:
                self.store.close()
                error = StorageError("it could not be opened on another rank, whose log says why")
            raise error
        self.store.go_on()
        return self.store.state

    def _store_settings(self, given: str | None, write_policy: str | None) -> StoreSettings:
        """The settings of a store to attach. Raises ConfigurationError for those that do not fit, and if one is attached."""
        if self.store.is_open:
            raise ConfigurationError(f"there is one already ({self.store.state}); detach it first")
        mine = self._write_policy.value
        if write_policy is not None and write_policy.replace("_", "-") != mine:
            raise ConfigurationError(f"the write policy is {mine} as long as the server runs, not {write_policy}")
        try:
            found = parse_json(given) if given else {}
        except NotJsonError as error:
            raise ConfigurationError(f"hicache_storage_backend_extra_config_json is not JSON: {error}") from error
        if found:
            return StoreSettings.of(found)
        if self._settings.store is None:
            raise ConfigurationError(
                f"name it in hicache_storage_backend_extra_config_json, as `store` of {VARIABLE} does, such as "
                '{"engine": "file", "directory": "/var/cache/kv", "capacity_bytes": 100000000000}'
            )
        return self._settings.store

    def _open(self, store: StoreSettings, prefetch_mode: str) -> StorageTier:
        from unified_tree.controllers.storage_tier import StorageTier

        assert self._model is not None, "a store is opened for pools"
        return StorageTier.open(
            store.engine,
            self._model,
            memory=self._memory,
            weights_version="",  # `KeptStore` says it each time that the store goes on
            options=store.options_for(self._part),
            prefetch=store.prefetch_policy(prefetch_mode),
        )


def is_in_host_memory(allocator: Any) -> bool:
    """Whether SGLang keeps its slot numbers where they can be read without waiting."""
    return torch.device(allocator.device).type == "cpu"


def copy_lanes(context: Any, tensors: Mapping[str, EngineTensors], settings: Settings) -> Mapping[EffectKind, Lane] | None:
    """The streams that copy between a GPU and the host; None on a CPU.

    The model runs on a stream of its own, beside the scheduler's, so copies wait for both.

    Raises ConfigurationError for a GPU, unless the settings allow what has not run on one.
    """
    device = next(iter(tensors.values())).device
    if device.type == "cpu":
        return None
    if not settings.allow_unproven_gpu:
        raise ConfigurationError(
            "the host tier has run on CPU only. To run it on a GPU all the same, compare its outputs with those of a server "
            f'without it, and set {{"allow_unproven_gpu": true}} in {VARIABLE}; or leave --enable-hierarchical-cache out'
        )
    from unified_tree.controllers.transfer_engines.cuda_lane import cuda_lanes

    return cuda_lanes(device, fences=[context.tp_worker.model_runner.forward_stream])


def over_stages(peers: ProcessGroup, stages: ProcessGroup) -> ProcessGroup:
    """A gloo group of the ranks that serve the same requests in all pipeline stages. All of them call this at the same point.

    Args:
        peers: those of this rank's stage.
        stages: the ranks at this rank's place in each stage.
    """
    import torch.distributed

    own = torch.distributed.get_rank()
    of_stage = torch.distributed.get_process_group_ranks(peers)
    at_place = torch.distributed.get_process_group_ranks(stages)
    ranks = sorted(peer + place - own for peer in of_stage for place in at_place)
    made: Any = torch.distributed.new_group(ranks, backend="gloo", use_local_synchronization=True)
    group: ProcessGroup = made  # this rank is one of them
    return group


def least_of_all(group: ProcessGroup | None, counts: Mapping[str, int]) -> dict[str, int]:
    """The least that any rank of a group counts of each component. All ranks call this at the same point.

    Raises ConfigurationError where ranks have other components.
    """
    import torch.distributed

    assert group is not None, "of several ranks"
    found: list[Any] = [None] * group.size()
    torch.distributed.all_gather_object(found, dict(counts), group)
    if any(each.keys() != counts.keys() for each in found):
        raise ConfigurationError(
            f"the host tier needs layers of the same kinds in each pipeline stage, not {' and '.join(map(str, found))}; "
            "leave --enable-hierarchical-cache out"
        )
    return {name: min(each[name] for each in found) for name in counts}


def agreed_name(group: ProcessGroup | None) -> str:
    """A random name, the same on all ranks of a process group on CPU, which call this at the same point."""
    names = [uuid4().hex]
    if group is not None and group.size() > 1:
        import torch.distributed

        torch.distributed.broadcast_object_list(names, torch.distributed.get_global_rank(group, 0), group)
    return names[0]


def all_ranks(group: ProcessGroup | None, *, holds: bool) -> bool:
    """Whether something holds on all ranks of a process group on CPU, which call this at the same point."""
    if group is None or group.size() == 1:
        return holds
    import torch
    import torch.distributed

    answers = torch.tensor([holds], dtype=torch.int32)
    torch.distributed.all_reduce(answers, torch.distributed.ReduceOp.MIN, group)
    return bool(answers[0])


def rank_agreement(group: ProcessGroup | None, timeout_s: float, watch: RankWatch | None) -> RankAgreement:
    """The agreement of the ranks of a process group, over a gloo group of its own; of one rank alone without a group.

    All ranks of the group call this at the same point.
    """
    if group is None or group.size() == 1:
        return SingleRank()
    import torch.distributed

    from unified_tree.controllers.ranks import DistributedConsensus

    ranks = torch.distributed.get_process_group_ranks(group)
    own: Any = torch.distributed.new_group(ranks, backend="gloo", use_local_synchronization=True)
    return MultiRank(DistributedConsensus(own, timeout_s=timeout_s, watch=watch))


def rank_watch(group: ProcessGroup | None, timeout_s: float) -> RankWatch | None:
    """The watch over the ranks of a process group on CPU; None for a rank alone. All ranks of the group call this at the same
    point."""
    if group is None or group.size() == 1:
        return None
    from unified_tree.controllers.ranks import RankWatch

    return RankWatch.of(group, timeout_s=timeout_s)
