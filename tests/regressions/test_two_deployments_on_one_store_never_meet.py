"""A store knew a model's name and the size of a page, and so gave one deployment the bytes of another.

Every deployment here is the first one with one thing changed. Each looks for a prompt in a store that all those before it
have filled, must find nothing, and fills it, too; then a restart of it must find all of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any

import numpy as np
import pytest
import torch

from unified_tree import Component, ConfigurationError, Key, Path
from unified_tree.components import Composition, composition_for, from_hf_config
from unified_tree.controllers import PrefixCache
from unified_tree.controllers.host.host_tier import LoadCost
from unified_tree.controllers.pools import HostLayout, mha_format
from unified_tree.controllers.prefix_linker import LinkedPrefixes, MemoryLinker, linked_pools
from unified_tree.controllers.prefix_linker.linked_pool import format_digest
from unified_tree.controllers.prefix_linker.linked_prefixes import PrefixSalt
from unified_tree.controllers.storage_tier import PrefetchMode, PrefetchPolicy, stored_pools
from unified_tree.controllers.tiers.tensor_memory import TensorTiers, tensor_tiers
from unified_tree.declare.page_format import WHOLE, Shard

PROMPT = np.arange(64)
LONGER = np.arange(65)
GPT_OSS = {
    "model_type": "gpt_oss",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 16,
}
KIMI = {
    "model_type": "kimi_linear",
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_experts": 4,
    "num_experts_per_token": 2,
    "num_shared_experts": 1,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_num_heads": 4,
    "linear_head_dim": 8,
    "linear_conv_kernel_dim": 4,
}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 64,
    "intermediate_size": 64,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "n_shared_experts": 1,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 32,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
}
LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A server: its model and how it serves it."""

    model: Composition
    layout: HostLayout = HostLayout.PAGE_FIRST_DIRECT
    weights_version: str = "2026-11"
    namespace: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """Device pages."""
        return {c.name: 24 for c in self.model.components if c.shares is None}

    def tiers(self) -> TensorTiers:
        """Its pools."""
        host = {c.name: 40 for c in self.model.components}
        return tensor_tiers(self.model, device_page_counts=self.counts, host_page_counts=host, layout=self.layout)

    def serve(self, directory: FilePath) -> int:
        """How much of the prompt the store has for it; then it computes the prompt and stores it."""
        tiers = self.tiers()
        storage = tiers.storage_tier(
            "file",
            weights_version=self.weights_version,
            options={"directory": directory, "capacity_bytes": 1 << 30, "shares": 40},
            prefetch=PrefetchPolicy(mode=PrefetchMode.WAIT_COMPLETE, min_tokens=1, max_host_share=1.0),
        )
        host = tiers.host_tier(load_cost=LoadCost(flops_per_s=1.0))
        cache = PrefixCache(self.model.components, self.model.page_size, self.counts, host=host, storage=storage)
        cache.prefetch("request", Key(LONGER, self.namespace))
        cache.drain()
        with cache.acquire(Key(LONGER, self.namespace), (64,), request="request") as lease:
            cache.drain()
            found = lease.cached_tokens
            if not found:
                cache.allocate(lease, PROMPT.size)
                cache.commit(lease, PROMPT, dict(lease.save_pages))
        cache.flush()
        figures = cache.stats().storage
        assert figures is not None and (figures.errors, dict(figures.quarantined)) == (0, {})
        cache.close()
        return found


def gpt_oss(**other: Any) -> Composition:
    """The first deployment's model, served in another way."""
    return from_hf_config(other.pop("config", GPT_OSS), **{"name": "m", "page_size": 8, **other})


FIRST = Deployment(model=gpt_oss())
OTHERS: Mapping[str, Deployment] = {
    "another model": Deployment(model=gpt_oss(name="n")),
    "another model of the same shape and name": Deployment(model=gpt_oss(config={**GPT_OSS, "rope_theta": 500.0})),
    "fewer layers": Deployment(model=gpt_oss(config={**GPT_OSS, "num_hidden_layers": 2})),
    "other layers": Deployment(
        model=gpt_oss(config={**GPT_OSS, "layer_types": ["full_attention", "sliding_attention"] * 2}),
    ),
    "float16": Deployment(model=gpt_oss(kv_dtype="float16")),
    "fp8": Deployment(model=gpt_oss(kv_dtype="fp8")),
    "fp8 of another kind": Deployment(model=gpt_oss(kv_dtype="fp8_e5m2")),
    "rank 0 of 2": Deployment(model=gpt_oss(tensor_parallel=2, rank=0)),
    "rank 1 of 2": Deployment(model=gpt_oss(tensor_parallel=2, rank=1)),
    "rank 0 of 4": Deployment(model=gpt_oss(tensor_parallel=4, rank=0)),
    "rank 1 of 4": Deployment(model=gpt_oss(tensor_parallel=4, rank=1)),
    "fp8 on rank 0 of 2": Deployment(model=gpt_oss(tensor_parallel=2, rank=0, kv_dtype="fp8")),
    "another page size": Deployment(model=gpt_oss(page_size=16)),
    "another layout": Deployment(model=gpt_oss(), layout=HostLayout.PAGE_FIRST),
    "other weights": Deployment(model=gpt_oss(), weights_version="2026-12"),
    "another namespace": Deployment(model=gpt_oss(), namespace="tenant"),
    "state": Deployment(model=from_hf_config(KIMI, name="k", page_size=16)),
    "state of another dtype": Deployment(model=from_hf_config(KIMI, name="k", page_size=16, state_dtype="bfloat16")),
    "state behind other latents": Deployment(model=from_hf_config(KIMI, name="k", page_size=16, kv_dtype="float16")),
    "state on rank 0 of 2": Deployment(model=from_hf_config(KIMI, name="k", page_size=16, tensor_parallel=2, rank=0)),
    **{
        f"tokens of rank {rank} of {ranks} in runs of {interleave}": Deployment(
            model=from_hf_config(DEEPSEEK, name="d", page_size=8, tensor_parallel=ranks, rank=rank).with_context_parallel(
                ranks, interleave=interleave
            )
        )
        for rank, ranks, interleave in ((0, 2, 1), (1, 2, 1), (0, 2, 2), (0, 2, 4), (1, 2, 4), (0, 4, 1), (0, 4, 2), (2, 4, 2))
    },
}
EVERY = {"the first": FIRST, **OTHERS}


def test_none_finds_what_another_wrote_and_each_finds_its_own(tmp_path: FilePath) -> None:
    taken = {name: found for name, deployment in EVERY.items() if (found := deployment.serve(tmp_path))}
    assert not taken, "tokens that were computed by another deployment"
    assert {name: deployment.serve(tmp_path) for name, deployment in EVERY.items()} == dict.fromkeys(EVERY, 64)


def test_the_example_of_the_readme(tmp_path: FilePath) -> None:
    """At its true size, for two deployments whose pages have as many bytes."""
    one, other = (Deployment(model=composition_for("gpt-oss-20b", page_size=8, kv_dtype=d)) for d in ("bfloat16", "float16"))
    assert [one.serve(tmp_path), other.serve(tmp_path), one.serve(tmp_path), other.serve(tmp_path)] == [0, 0, 64, 64]


def test_no_pool_of_two_models_has_the_same_digest() -> None:
    """Not even one whose own format is the same: a state depends on the dtype of the KV it was computed over."""
    seen: dict[bytes, str] = {}
    for name, deployment in EVERY.items():
        if deployment.weights_version == FIRST.weights_version and not deployment.namespace:  # which are in the keys
            for pool in stored_pools(deployment.model, layout=deployment.layout):
                assert seen.setdefault(pool.format_digest, name) == name, pool.name


def test_ranks_share_what_is_the_same_on_all_of_them(tmp_path: FilePath) -> None:
    latents = [Deployment(model=from_hf_config(DEEPSEEK, page_size=8, tensor_parallel=2, rank=rank)) for rank in (0, 1)]
    assert [each.serve(tmp_path) for each in latents] == [0, 64]
    assert [each.model.writes("full") for each in latents] == [True, False]
    unnamed = from_hf_config(DEEPSEEK, page_size=8, tensor_parallel=2)
    assert Deployment(model=unnamed).serve(tmp_path) == 64, "which rank it is changes nothing"


def test_ranks_share_the_heads_that_they_both_keep(tmp_path: FilePath) -> None:
    ranks = [Deployment(model=from_hf_config(LLAMA, page_size=8, tensor_parallel=4, rank=rank)) for rank in range(4)]
    assert [each.model.components[0].format and each.model.components[0].format.shard for each in ranks] == [
        Shard(0, 2),
        Shard(0, 2),
        Shard(1, 2),
        Shard(1, 2),
    ]
    assert [each.serve(tmp_path) for each in ranks] == [0, 64, 0, 64]
    assert [each.model.writes("full") for each in ranks] == [True, False, True, False]


def test_context_parallel_ranks_with_the_same_tokens_share_them(tmp_path: FilePath) -> None:
    """Four ranks of two parts: the first two write, and the last two find what they keep."""
    whole = [from_hf_config(DEEPSEEK, page_size=8, tensor_parallel=4, rank=rank) for rank in range(4)]
    ranks = [Deployment(model=each.with_context_parallel(2)) for each in whole]
    assert [each.serve(tmp_path) for each in ranks] == [0, 0, 64, 64]
    assert [each.model.writes("full") for each in ranks] == [True, True, False, False]


def test_latents_beside_divided_states_are_shared_by_the_ranks_of_one_server_only() -> None:
    def digests(**serving: Any) -> dict[str, bytes]:
        model = from_hf_config(KIMI, name="k", page_size=16, **serving)
        return {pool.name: pool.format_digest for pool in stored_pools(model, layout=HostLayout.PAGE_FIRST_DIRECT)}

    alone, first, second = digests(), digests(tensor_parallel=2, rank=0), digests(tensor_parallel=2, rank=1)
    assert first["full"] == second["full"] != alone["full"]
    assert len({alone["mamba"], first["mamba"], second["mamba"]}) == 3


def by_hand(**stated: Any) -> Composition:
    """Components that somebody wrote down."""
    return Composition(name="mine", page_size=8, components=(Component(name="full", coverage=Path(), **stated),))


STATED = mha_format("full", layer_ids=(0, 1), page_size=8, kv_heads=2, head_dim=16, shard=WHOLE)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (gpt_oss(tensor_parallel=2), "full: it is not stated which shard .*; swa: it is not stated which shard"),
        (by_hand(page_bytes=4096), "full: the size of its pages is known but not what they hold"),
        (by_hand(format=replace(STATED, shard=None)), "full: it is not stated which shard"),
    ],
)
def test_what_is_not_stated_is_neither_stored_nor_linked(model: Composition, reason: str, tmp_path: FilePath) -> None:
    deployment = Deployment(model=model)
    tiers = deployment.tiers()
    with pytest.raises(ConfigurationError, match=reason):
        tiers.storage_tier("file", weights_version="v1", options={"directory": tmp_path, "capacity_bytes": 1 << 24})
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigurationError, match=reason):
        stored_pools(model, layout=HostLayout.PAGE_FIRST_DIRECT)
    with pytest.raises(ConfigurationError, match=reason):
        linked_pools(model, tiers.device)


def test_components_by_hand_are_stored_once_their_format_is_stated(tmp_path: FilePath) -> None:
    for model in (by_hand(format=STATED), by_hand(page_bytes=4096).with_formats({"full": STATED})):
        Deployment(model=model).serve(tmp_path)
        assert Deployment(model=model).serve(tmp_path) == 64
    sharded = by_hand(format=replace(STATED, shard=Shard(1, 2)))
    assert Deployment(model=sharded).serve(tmp_path) == 0


def test_a_linker_refuses_pools_of_another_format() -> None:
    pools = Deployment(model=gpt_oss(kv_dtype="float16")).tiers().device
    with pytest.raises(ConfigurationError, match=r"full: its device pool holds .*float16.*, the composition says .*bfloat16"):
        linked_pools(gpt_oss(), pools)


class Linked:
    """A server of one deployment, linked to what others of the process keep."""

    def __init__(self, deployment: Deployment, peer: MemoryLinker | None, fill: Callable[[torch.Tensor], object]) -> None:
        self.deployment = deployment
        tiers = deployment.tiers()
        for pool in tiers.device.values():
            for part in pool.format.parts:
                fill(pool.memory(part.name))
        model = deployment.model
        pools = linked_pools(model, tiers.device)
        self.linker = MemoryLinker(pools, 32, 1000, peer)
        self.cache = PrefixCache(model.components, model.page_size, deployment.counts)
        self.link = LinkedPrefixes(self.cache, self.linker, pools, weights_version=deployment.weights_version)

    def serve(self) -> int:
        """How much of the prompt the others have for it; then it computes and offers it."""
        key = Key(LONGER, self.deployment.namespace)
        self.link.lookup("request", key)
        while not self.link.is_ready("request"):
            self.link.poll()
        with self.cache.acquire(key, self.link.checkpoints(LONGER.size)) as lease:
            found = lease.cached_tokens
            self.cache.allocate(lease, PROMPT.size)
            self.cache.commit(lease, PROMPT, dict(lease.save_pages))
            self.link.store("request", lease)
        self.link.poll()
        self.link.release("request")
        return found


def test_no_deployment_is_given_anothers_prefix_by_a_linker() -> None:
    deployments = {name: each for name, each in EVERY.items() if each.layout is FIRST.layout}  # of host pages
    first = Linked(FIRST, None, torch.Tensor.zero_)
    assert first.serve() == 0
    servers = {name: Linked(each, first.linker, torch.Tensor.zero_) for name, each in deployments.items() if each is not FIRST}
    taken = {name: found for name, server in servers.items() if (found := server.serve())}
    assert not taken, "tokens that were computed by another deployment"
    twins = {name: Linked(each, first.linker, torch.Tensor.zero_) for name, each in deployments.items()}
    assert {name: server.serve() for name, server in twins.items()} == dict.fromkeys(twins, 64)


def test_no_two_deployments_have_the_same_salt() -> None:
    """Every linker is given it, and LMCache's names of models end in the digest it is made of."""
    salts, digests = {}, set()
    for name, each in EVERY.items():
        if each.layout is FIRST.layout:
            digest = format_digest(linked_pools(each.model, each.tiers().device))
            digests.add(digest)
            salts[PrefixSalt(each.weights_version, digest, lambda _: (0, 0)).of(each.namespace)] = name
    assert len(salts) == len(EVERY) - 1
    assert len(digests) == len(EVERY) - 3, "all but those that differ in layout, weights or namespace"
