"""The entry point `sglang.srt.plugins`: registers the backend `unified_tree`, and refuses what was not tested."""

# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from unified_tree.controllers.adapters.sglang.hooks import (
    answer_whether_cleared,
    call_when_idle,
    end_sessions_alike,
    keep_drafts,
    watch_weights,
)
from unified_tree.controllers.adapters.sglang.refusals import Served, apart_refusals, division_refusals, flag_refusals
from unified_tree.controllers.adapters.sglang.settings import VARIABLE, Settings
from unified_tree.controllers.counters.observers import open_observers
from unified_tree.controllers.storage_tier.store_settings import weights_version
from unified_tree.terms.errors import ConfigurationError

TESTED_VERSIONS = ("0.5.23",)


def register() -> None:
    """Register `--radix-cache-backend unified_tree`. SGLang calls this once in each of its processes."""
    from sglang.srt.mem_cache.registry import register_radix_cache_backend

    register_radix_cache_backend("unified_tree", build)


def build(context: Any) -> Any:
    """The cache for a model, as SGLang describes it. Raises ConfigurationError for what the backend cannot do."""
    check_version(version("sglang"))
    from sglang.srt.mem_cache.registry import default_radix_cache_factory
    from sglang.srt.runtime_context import get_lora, get_parallel, mamba_checkpoint_grid

    refuse(flag_refusals(context.server_args))  # first, for disaggregation disables the cache of a decode server
    if context.disable_radix_cache:
        return default_radix_cache_factory(context)
    mode: str = context.server_args.disaggregation_mode
    has_windows: bool = context.is_hybrid_swa
    refuse(
        refusals(context)
        + apart_refusals(mode, has_windows=has_windows, page_size=context.params.page_size)
        + division_refusals(context.server_args, has_windows=has_windows)
    )
    from unified_tree.controllers.adapters.sglang.assembly import TierBuilder, rank_watch
    from unified_tree.controllers.adapters.sglang.backend import UnifiedTreeCache

    is_first = context.tp_rank == 0 and context.params.pp_rank == 0
    context = among_peers(context, get_parallel())
    settings, params = Settings.read(), context.params
    tells = context.tp_rank == 0 and params.pp_rank == 0  # its peers would say the same
    check_flags(
        settings,
        is_hierarchical=context.enable_hierarchical_cache,
        storage_backend=context.server_args.hicache_storage_backend,
    )
    watch = rank_watch(params.tp_cache_group, settings.rank_timeout_s)
    tiers = TierBuilder(context, settings, watch) if context.enable_hierarchical_cache else None
    cache = UnifiedTreeCache(
        params,
        settings.policy or params.eviction_policy.lower(),
        has_windows=has_windows,
        has_states=context.is_hybrid_ssm,
        state_grid_tokens=mamba_checkpoint_grid(params.page_size) if context.is_hybrid_ssm else 1,
        tiers=tiers,
        watch=watch,
        adapters={} if settings.store is None else adapter_versions(get_lora().lora_paths or ()),
        event_groups=settings.event_groups,
        infers=settings.infer_sessions,
        tenants=settings.tenants,
        arrives=mode == "decode",
        misses=settings.misses if tells else replace(settings.misses, log_s=0),
        inspector=settings.inspector if tells else None,
        observers=open_observers(settings.observers) if is_first else (),
    )
    if cache.observation.page is not None:
        call_when_idle(cache.observation.step)
    if cache.sessions is not None and not cache.has_one_clock:
        end_sessions_alike(cache.sessions)
    if tiers is not None:
        cache.watch_layers(context.tp_worker)
        answer_whether_cleared()
        keep_drafts()
        watch_weights()
    return cache


def among_peers(context: Any, parallel: Any) -> Any:
    """SGLang's description, where rank and size are those among the ranks that serve the same requests and divide their heads:
    with data-parallel attention a group of the tensor-parallel ranks.

    Args:
        parallel: SGLang's description of all ranks.
    """
    if not parallel.attn_dp_enabled:
        return context
    return replace(context, tp_rank=parallel.attn_tp_rank, tp_size=parallel.attn_tp_size)


def refuse(reasons: list[str]) -> None:
    """Raise ConfigurationError for these reasons, if there are any."""
    if reasons:
        raise ConfigurationError(
            f"--radix-cache-backend unified_tree does not support {'; nor '.join(reasons)}. "
            "Leave the flag out to serve this model with SGLang's own cache."
        )


def adapter_versions(adapters: Iterable[Any]) -> dict[str, str]:
    """Weights versions of the LoRA adapters of `--lora-paths`, by SGLang's id, which is the same for other files at that path.

    One that is loaded later has an id that no other life of the server will use.
    """
    return {adapter.lora_id: weights_version(adapter.lora_path, adapter.lora_name) for adapter in adapters}


def check_version(installed: str) -> None:
    """Raise ConfigurationError for an SGLang that was not tested."""
    if installed not in TESTED_VERSIONS:
        raise ConfigurationError(
            f"this unified-tree was tested with SGLang {', '.join(TESTED_VERSIONS)}; {installed} is installed. "
            f"Run `pip install sglang=={TESTED_VERSIONS[-1]}`, or leave --radix-cache-backend out."
        )


def check_flags(settings: Settings, *, is_hierarchical: bool, storage_backend: str | None) -> None:
    """Raise ConfigurationError for a tier that SGLang's flags leave without calls, or a flag that nothing here answers."""
    for name, wanted in (("host", settings.host), ("store", settings.store)):
        if wanted is not None and not is_hierarchical:
            raise ConfigurationError(
                f"{VARIABLE} sets `{name}`, which SGLang uses with --enable-hierarchical-cache only: add the flag, "
                f"or take `{name}` out"
            )
    if settings.store is not None and storage_backend is None:
        raise ConfigurationError(
            f"{VARIABLE} sets `store`, and SGLang asks for stored prompts with --hicache-storage-backend only: add "
            f"--hicache-storage-backend file; the flag makes SGLang ask, and what answers is the store of {VARIABLE}"
        )
    if settings.store is None and storage_backend is not None:
        raise ConfigurationError(
            f"--hicache-storage-backend {storage_backend} names a store of SGLang's own cache. Name one for this cache in "
            f'{VARIABLE}, such as {{"store": {{"engine": "file", "directory": "/var/cache/kv"}}}}, or leave the flag out'
        )


def refusals(context: Any) -> list[str]:
    """What of a model or a configuration the backend does not support, in words."""
    params = context.params
    allocator, pool = params.token_to_kv_pool_allocator, params.req_to_token_pool
    windows_by_request = getattr(allocator, "swa_req_ring", False) or (
        context.is_hybrid_swa and not params.swa_gates_prefix_match
    )
    has_states = context.is_hybrid_ssm
    return Served(
        allocator=type(allocator).__name__,
        has_full_attention=not (context.is_hybrid_swa and context.full_tokens_per_layer == 0),
        has_states=has_states,
        windows_by_request=windows_by_request,
        has_bounded_replay=params.decoder_swa_bounded_replay,
        has_int8_checkpoints=getattr(pool, "mamba_ckpt_pool", None) is not None,
        has_replay_ssm=has_states and getattr(pool.mamba_pool, "replayssm_write_pos", None) is not None,
        is_eagle=params.is_eagle,
        has_extra_buffer=params.enable_mamba_extra_buffer,
        page_size=params.page_size,
    ).refusals()
