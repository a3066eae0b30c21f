"""What the backend refuses, without SGLang."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sglang_allocators import fake_pool

from unified_tree import ConfigurationError
from unified_tree.controllers.adapters.sglang.plugin import TESTED_VERSIONS, among_peers, check_version, refusals, refuse
from unified_tree.controllers.adapters.sglang.refusals import REFUSED_FLAGS, RefusedFlag, flag_refusals


def context(
    *, allocator: str = "TokenToKVPoolAllocator", ring: bool = False, replayssm: object = None, **changed: Any
) -> SimpleNamespace:
    fields = {"is_hybrid_swa": False, "is_hybrid_ssm": False, "full_tokens_per_layer": 100}
    params: dict[str, Any] = {
        "token_to_kv_pool_allocator": fake_pool(allocator, swa_req_ring=ring),
        "swa_gates_prefix_match": True,
        "decoder_swa_bounded_replay": False,
        "req_to_token_pool": SimpleNamespace(
            mamba_ckpt_pool=changed.pop("mamba_ckpt_pool", None), mamba_pool=SimpleNamespace(replayssm_write_pos=replayssm)
        ),
        "is_eagle": False,
        "enable_mamba_extra_buffer": False,
        "page_size": 1,
    }
    params |= {name: value for name, value in changed.items() if name in params}
    fields |= {name: value for name, value in changed.items() if name in fields}
    return SimpleNamespace(params=SimpleNamespace(**params), **fields)


SWA, SSM = {"is_hybrid_swa": True}, {"is_hybrid_ssm": True}


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"allocator": "PagedTokenToKVPoolAllocator", "page_size": 64, "is_eagle": True},
        {"allocator": "SWATokenToKVPoolAllocator", **SWA},
        SSM,
        {"page_size": 16, "enable_mamba_extra_buffer": True, "is_eagle": True, **SSM},
    ],
)
def test_what_is_supported_is_not_refused(given: dict[str, Any]) -> None:
    assert refusals(context(**given)) == []


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"allocator": "UnifiedSWAAllocator"}, "the allocator UnifiedSWAAllocator"),
        ({"full_tokens_per_layer": 0, **SWA}, "models without any full attention"),
        ({"ring": True}, "windows that are kept by request instead of by token"),
        ({"swa_gates_prefix_match": False, **SWA}, "windows that are kept by request instead of by token"),
        ({"decoder_swa_bounded_replay": True}, "bounded replay of windows in the decoder"),
        ({"mamba_ckpt_pool": object()}, "--enable-int8-mamba-checkpoint"),
        ({"replayssm": object(), **SSM}, "ReplaySSM"),
        ({"is_eagle": True, **SSM}, "EAGLE on models with recurrent states without the extra buffer"),
        ({"page_size": 16, **SSM}, "recurrent states without the extra buffer at another page size than 1"),
    ],
)
def test_what_is_not_supported_is_refused_in_words(given: dict[str, Any], reason: str) -> None:
    assert refusals(context(**given)) == [reason]


@dataclass
class Description:
    """The fields of SGLang's description that say where a rank is."""

    tp_rank: int
    tp_size: int


def test_ranks_of_other_requests_are_no_peers() -> None:
    """Of four tensor-parallel ranks in two groups of data-parallel attention, two divide the heads."""
    found = []
    for rank in range(4):
        parallel = SimpleNamespace(attn_dp_enabled=True, attn_tp_rank=rank % 2, attn_tp_size=2)
        found.append(among_peers(Description(rank, 4), parallel))
    assert found == [Description(0, 2), Description(1, 2)] * 2
    parallel = SimpleNamespace(attn_dp_enabled=False, attn_tp_rank=1, attn_tp_size=2)
    assert among_peers(Description(3, 4), parallel) == Description(3, 4)


def test_another_version_is_refused_with_what_to_install() -> None:
    for installed in TESTED_VERSIONS:
        check_version(installed)
    with pytest.raises(ConfigurationError, match=r"0\.5\.24 is installed. Run `pip install sglang==0\.5\.23`"):
        check_version("0.5.24")


DEFAULTS = {
    flag.field: flag.allowed if flag.values is None else False if True in flag.values else "default" for flag in REFUSED_FLAGS
} | {"disaggregation_mode": "null", "attn_dp_size": 1, "enable_dp_attention": False}
DOCS = Path(__file__).parents[4] / "docs" / "sglang.md"


@pytest.mark.parametrize(
    ("flag", "value"),
    [(flag, value) for flag in REFUSED_FLAGS for value in flag.values or ("other",)],
    ids=lambda given: str(given)[:40],
)
def test_each_refused_flag_has_its_message_and_stands_in_the_docs(flag: RefusedFlag, value: object) -> None:
    said = flag.flag if value is True else f"{flag.flag} {value}"
    assert flag_refusals(SimpleNamespace(**DEFAULTS)) == []
    reasons = flag_refusals(SimpleNamespace(**{**DEFAULTS, flag.field: value}))
    assert len(reasons) == 1
    with pytest.raises(ConfigurationError) as caught:
        refuse(reasons)
    assert f"does not support {said} ({flag.why}). Leave the flag out" in str(caught.value)
    refused = DOCS.read_text(encoding="utf-8").partition("## What is refused")[2].partition("\n## ")[0]
    assert f"`{flag.flag if flag.values is None else said}`" in refused


def test_several_reasons_are_one_message() -> None:
    with pytest.raises(ConfigurationError, match="does not support this; nor that"):
        refuse(["this", "that"])
