"""What the SGLang backend does not support, said once: for a model that is being served, and for one that may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from unified_tree.controllers.adapters.sglang.settings import VARIABLE

ALLOCATORS = ("TokenToKVPoolAllocator", "PagedTokenToKVPoolAllocator", "SWATokenToKVPoolAllocator")
"""SGLang's allocators whose slots the backend can own."""


@dataclass(frozen=True, slots=True)
class RefusedFlag:
    """An option of SGLang's that the backend refuses.

    Attributes:
        flag: the option, without its value.
        field: SGLang's name of it.
        values: which of its values are refused; None for all but `allowed`.
        why: a sentence, for the message.
        allowed: the value that means nothing, where every other is refused: SGLang's default.
    """

    flag: str
    field: str
    values: tuple[object, ...] | None
    why: str
    allowed: object = None

    def refusal(self, arguments: Any) -> str | None:
        """Why these arguments of SGLang's are refused, a noun in words; None if they are not."""
        value = getattr(arguments, self.field)
        if value == self.allowed if self.values is None else value not in self.values:
            return None
        return f"{self.flag if value is True else f'{self.flag} {value}'} ({self.why})"


OWN_TREE = "it is a part of SGLang's own tree"
NEVER_RUN = "it was never run with this cache"
REFUSED_FLAGS = (
    RefusedFlag("--enable-pd-role-switch", "enable_pd_role_switch", (True,), NEVER_RUN),
    RefusedFlag("--decoupled-spec-role", "decoupled_spec_role", ("verifier", "drafter"), NEVER_RUN),
    RefusedFlag("--enable-pdmux", "enable_pdmux", (True,), NEVER_RUN),
    RefusedFlag(
        "--enable-streaming-session",
        "enable_streaming_session",
        (True,),
        "SGLang keeps the slots of streaming sessions in its own tree",
    ),
    RefusedFlag(
        "--hicache-host-memory-mode",
        "hicache_host_memory_mode",
        ("buffer_only",),
        "host memory is a tier of this cache, not a buffer in front of a store",
    ),
    RefusedFlag(
        "--hicache-host-memory-fraction",
        "hicache_host_memory_fraction",
        None,
        "this cache takes as many host pages as --hicache-ratio or --hicache-size says, or does not start",
        0.8,
    ),
    RefusedFlag("--hicache-io-backend", "hicache_io_backend", None, "this cache has copies of its own", "kernel"),
    RefusedFlag("--hicache-mem-layout", "hicache_mem_layout", None, "this cache has one layout of its own", "page_first"),
    RefusedFlag(
        "--hicache-storage-backend-extra-config",
        "hicache_storage_backend_extra_config",
        None,
        f"the setting `store` of {VARIABLE} says all of the store",
    ),
    RefusedFlag(
        "--hicache-storage-prefetch-retry-poll-interval",
        "hicache_storage_prefetch_retry_poll_interval",
        None,
        "this cache asks its store once for a prompt, when it arrives",
        8,
    ),
    RefusedFlag(
        "--radix-eviction-policy",
        "radix_eviction_policy",
        ("tlru",),
        "SGLang keeps what this policy ranks by in its own tree; the setting `policy` names those of this cache",
    ),
    RefusedFlag(
        "--radix-eviction-policy-config",
        "radix_eviction_policy_config",
        None,
        "the policies of this cache have no parameters there",
    ),
    RefusedFlag("--mamba-max-states-per-path", "mamba_max_states_per_path", None, OWN_TREE, -1),
    RefusedFlag("--enable-lmcache", "enable_lmcache", (True,), "it brings a cache of its own"),
    RefusedFlag("--enable-flexkv", "enable_flexkv", (True,), "it brings a cache of its own"),
    RefusedFlag("--enable-hisparse", "enable_hisparse", (True,), NEVER_RUN),
    RefusedFlag("--enable-kv-cache-sharding", "enable_kv_cache_sharding", (True,), OWN_TREE),
    RefusedFlag("--enable-dsa-cache-layer-split", "enable_dsa_cache_layer_split", (True,), NEVER_RUN),
    RefusedFlag("--enable-encoder-swa-bounded-replay", "enable_encoder_swa_bounded_replay", (True,), NEVER_RUN),
)
"""Options that SGLang would take and this cache would leave without effect, that were never run with it, or that end SGLang's
start with a message that does not name this cache."""


NOT_SO = "it was never run with this cache and --disaggregation-mode"
DISAGGREGATED = (
    RefusedFlag("--enable-session-radix-cache", "enable_session_radix_cache", (True,), NOT_SO),
    RefusedFlag("--enable-lora", "enable_lora", (True,), NOT_SO),
    RefusedFlag("--speculative-algorithm", "speculative_algorithm", None, NOT_SO),
    RefusedFlag("--pp-size", "pp_size", None, NOT_SO, 1),
    RefusedFlag("--enable-dp-attention", "enable_dp_attention", (True,), NOT_SO),
    RefusedFlag("--attn-dp-size", "attn_dp_size", None, NOT_SO, 1),
    RefusedFlag("--dcp-size", "dcp_size", None, NOT_SO, 1),
    RefusedFlag("--attn-cp-size", "attn_cp_size", None, NOT_SO, 1),
    RefusedFlag("--enable-prefill-cp", "enable_prefill_cp", (True,), NOT_SO),
    RefusedFlag("--optimistic-prefill-attempts", "optimistic_prefill_attempts", None, NOT_SO, 0),
    RefusedFlag("--disaggregation-decode-allocation-policy", "disaggregation_decode_allocation_policy", None, NOT_SO, "early"),
    RefusedFlag(
        "--disaggregation-decode-enable-offload-kvcache", "disaggregation_decode_enable_offload_kvcache", (True,), NOT_SO
    ),
    RefusedFlag(
        "--disaggregation-decode-host-receive-threshold", "disaggregation_decode_host_receive_threshold", None, NOT_SO, 1.0
    ),
)
"""Options that are refused where prefill and decode run on servers of their own."""
DECODE_SERVER = (
    RefusedFlag(
        "--enable-hierarchical-cache",
        "enable_hierarchical_cache",
        (True,),
        "SGLang's decode server asks its own tree for what is on host; a prefill server may have it",
    ),
)
"""Options that are refused on a decode server alone."""

NOT_IN_GROUPS = "it was never run with this cache and data-parallel attention"
DATA_PARALLEL_ATTENTION = (
    RefusedFlag("--attn-cp-size", "attn_cp_size", None, NOT_IN_GROUPS, 1),
    RefusedFlag("--enable-prefill-cp", "enable_prefill_cp", (True,), NOT_IN_GROUPS),
    RefusedFlag("--dcp-size", "dcp_size", None, NOT_IN_GROUPS, 1),
    RefusedFlag("--pp-size", "pp_size", None, NOT_IN_GROUPS, 1),
    RefusedFlag("--elastic-ep-backend", "elastic_ep_backend", ("mooncake", "nixl"), NOT_IN_GROUPS),
)
"""Options that are refused where groups of ranks attend to requests of their own."""


def flag_refusals(arguments: Any) -> list[str]:
    """Which of SGLang's arguments are refused, each a noun in words."""
    flags, mode = list(REFUSED_FLAGS), arguments.disaggregation_mode
    if arguments.attn_dp_size != 1 or arguments.enable_dp_attention:
        flags += DATA_PARALLEL_ATTENTION
    if mode in ("prefill", "decode"):
        flags += DISAGGREGATED
    if mode == "decode":
        flags += DECODE_SERVER
    found = [refusal for flag in flags if (refusal := flag.refusal(arguments)) is not None]
    if mode == "decode" and not arguments.disaggregation_decode_enable_radix_cache:
        found.append("--disaggregation-mode decode without --disaggregation-decode-enable-radix-cache (it has no prefix cache)")
    return found


def apart_refusals(mode: str, *, has_windows: bool, page_size: int) -> list[str]:
    """Why a model is refused where prefill and decode run on servers of their own, each reason a noun in words.

    Args:
        mode: of SGLang's `--disaggregation-mode`; *null* for none.
    """
    if mode == "decode" and has_windows and page_size == 1:
        why = "SGLang reserves windows for what arrives at larger pages only"
        return [f"windows with --disaggregation-mode decode at the page size 1 ({why})"]
    return []


def division_refusals(arguments: Any, *, has_windows: bool) -> list[str]:
    """Why a model is refused where ranks divide the tokens of its pages (`--dcp-size`), each reason a noun in words."""
    if arguments.dcp_size == 1:
        return []
    found = []
    if has_windows:
        found.append("--dcp-size for models with windows (SGLang does not divide the pages of their pools)")
    if arguments.attn_cp_size > 1:
        found.append(f"--dcp-size together with --attn-cp-size ({NEVER_RUN})")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What of a model and of its settings decides whether the backend can serve it.

    Attributes:
        allocator: SGLang's allocator of slots, by its class; None before it is made.
        has_full_attention: at least one layer attends to all tokens.
        has_states: some layers are recurrent.
        windows_by_request: windows are kept by request instead of by token.
        has_bounded_replay: the decoder replays windows in bounds.
        other_state: kinds of state that SGLang keeps in pools of its own.
        has_int8_checkpoints: `--enable-int8-mamba-checkpoint`.
        has_replay_ssm: ReplaySSM.
        is_eagle: it is served with an EAGLE draft, or with MTP layers as its draft.
        has_extra_buffer: states are saved on a grid (`--mamba-radix-cache-strategy extra_buffer`).
        page_size: tokens a page.
    """

    allocator: str | None = None
    has_full_attention: bool = True
    has_states: bool = False
    windows_by_request: bool = False
    has_bounded_replay: bool = False
    other_state: tuple[str, ...] = ()
    has_int8_checkpoints: bool = False
    has_replay_ssm: bool = False
    is_eagle: bool = False
    has_extra_buffer: bool = False
    page_size: int = 1

    def refusals(self) -> list[str]:
        """Why the backend refuses it, each reason a noun in words; empty if it does not."""
        checks = (
            (self.allocator is not None and self.allocator not in ALLOCATORS, f"the allocator {self.allocator}"),
            (not self.has_full_attention, "models without any full attention"),
            (self.windows_by_request, "windows that are kept by request instead of by token"),
            (self.has_bounded_replay, "bounded replay of windows in the decoder"),
            (bool(self.other_state), f"the state {', '.join(self.other_state)}, for which SGLang has allocators of its own"),
            (self.has_int8_checkpoints, "--enable-int8-mamba-checkpoint"),
            (self.has_replay_ssm, "ReplaySSM"),
            (
                self.has_states and self.is_eagle and not self.has_extra_buffer,
                "EAGLE on models with recurrent states without the extra buffer",
            ),
            (
                self.has_states and not self.has_extra_buffer and self.page_size != 1,
                "recurrent states without the extra buffer at another page size than 1",
            ),
        )
        return [reason for is_so, reason in checks if is_so]
