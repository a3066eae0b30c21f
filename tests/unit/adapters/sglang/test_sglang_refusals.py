"""The refusals of the backend. Each of SGLang's options that concern a cache is read, refused, or its own: a new one fails."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sglang_allocators import fake_pool
from sglang_flags import FLAGS, MEANINGS

from unified_tree import ConfigurationError
from unified_tree.controllers.adapters.sglang.plugin import TESTED_VERSIONS, among_peers, check_version, refusals, refuse
from unified_tree.controllers.adapters.sglang.refusals import (
    DATA_PARALLEL_ATTENTION,
    DECODE_SERVER,
    DISAGGREGATED,
    REFUSED_FLAGS,
    RefusedFlag,
    Served,
    apart_refusals,
    division_refusals,
    flag_refusals,
)


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


def test_state_in_pools_of_its_own_is_refused() -> None:
    assert Served(other_state=("c4",)).refusals() == ["the state c4, for which SGLang has allocators of its own"]


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


RECORD = Path(__file__).parents[3] / "e2e" / "sglang" / "contract.json"
GROUPS = ("Disagg", "ExecMamba", "Lora", "Memory", "Parallel", "Schedule")
ALL = (*REFUSED_FLAGS, *DISAGGREGATED, *DECODE_SERVER, *DATA_PARALLEL_ATTENTION)
READ_TOO = {"radix_eviction_policy"}
"""Of refused options: other values are read."""
DEFAULTS = {
    **{flag.field: flag.allowed if flag.values is None else None for flag in ALL},
    "disaggregation_mode": "null",
    "disaggregation_decode_enable_radix_cache": False,
}
DOCS = Path(__file__).parents[4] / "docs" / "sglang.md"


@pytest.mark.parametrize(
    ("flag", "value"),
    [(flag, value) for flag in REFUSED_FLAGS for value in flag.values or ("other", 0.25, 2)],
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


def recorded() -> dict[str, str]:
    """SGLang's options of these groups, with their defaults, as in its sources."""
    [record] = json.loads(RECORD.read_text(encoding="utf-8")).values()
    found = {name: default for group in GROUPS for name, default in record[group].items()}
    return {name: default for name, default in found.items() if not name.startswith("_")}


def test_every_option_has_a_meaning() -> None:
    refused = {flag.field for flag in REFUSED_FLAGS}
    known = recorded().keys()
    assert known - FLAGS.keys() - refused == set(), "new options: read them, refuse them, or list them as SGLang's own"
    assert FLAGS.keys() - known == set(), "options that are gone"
    assert FLAGS.keys() & refused == READ_TOO
    assert sum(len(names.split()) for names in MEANINGS.values()) == len(FLAGS), "no option is listed twice"


def test_no_default_is_refused() -> None:
    """An option that may only have its default is not refused where it is left out."""
    defaults = {**recorded(), "speculative_algorithm": "None"}
    for flag in ALL:
        if flag.values is None:
            assert defaults.get(flag.field) == repr(flag.allowed), flag.flag
        else:
            assert defaults.get(flag.field, "False") not in {repr(value) for value in flag.values}, flag.flag


@pytest.mark.parametrize("flag", DISAGGREGATED, ids=lambda flag: flag.flag)
def test_an_option_may_be_refused_only_with_servers_of_their_own(flag: RefusedFlag) -> None:
    value = True if flag.values else "other"
    assert flag_refusals(SimpleNamespace(**{**DEFAULTS, flag.field: value})) == []
    for mode in ("prefill", "decode"):
        apart = {**DEFAULTS, "disaggregation_mode": mode, "disaggregation_decode_enable_radix_cache": True}
        assert flag_refusals(SimpleNamespace(**apart)) == []
        [reason] = flag_refusals(SimpleNamespace(**{**apart, flag.field: value}))
        assert reason.startswith(flag.flag)


@pytest.mark.parametrize("given", [{"attn_dp_size": 2}, {"enable_dp_attention": True}], ids=lambda given: next(iter(given)))
@pytest.mark.parametrize("flag", DATA_PARALLEL_ATTENTION, ids=lambda flag: flag.flag)
def test_an_option_is_refused_with_data_parallel_attention(flag: RefusedFlag, given: dict[str, object]) -> None:
    assert flag_refusals(SimpleNamespace(**{**DEFAULTS, **given})) == []
    value = flag.values[0] if flag.values else 2
    reasons = flag_refusals(SimpleNamespace(**{**DEFAULTS, **given, flag.field: value}))
    assert any(flag.flag in reason and "data-parallel attention" in reason for reason in reasons)


@pytest.mark.parametrize("flag", DECODE_SERVER, ids=lambda flag: flag.flag)
def test_an_option_may_be_refused_only_on_a_decode_server(flag: RefusedFlag) -> None:
    given = {**DEFAULTS, flag.field: True, "disaggregation_decode_enable_radix_cache": True}
    for mode in ("null", "prefill"):
        assert flag_refusals(SimpleNamespace(**{**given, "disaggregation_mode": mode})) == []
    [reason] = flag_refusals(SimpleNamespace(**{**given, "disaggregation_mode": "decode"}))
    assert reason == f"{flag.flag} ({flag.why})"


def test_a_decode_server_needs_a_prefix_cache() -> None:
    [reason] = flag_refusals(SimpleNamespace(**{**DEFAULTS, "disaggregation_mode": "decode"}))
    assert "--disaggregation-decode-enable-radix-cache" in reason
    assert flag_refusals(SimpleNamespace(**{**DEFAULTS, "disaggregation_mode": "prefill"})) == []


def test_a_decode_server_reserves_windows_in_pages() -> None:
    assert apart_refusals("null", has_windows=True, page_size=1) == []
    assert apart_refusals("prefill", has_windows=True, page_size=1) == []
    assert apart_refusals("decode", has_windows=False, page_size=1) == []
    assert apart_refusals("decode", has_windows=True, page_size=16) == []
    [reason] = apart_refusals("decode", has_windows=True, page_size=1)
    assert reason.startswith("windows with --disaggregation-mode decode at the page size 1")


def test_ranks_divide_pages_of_models_without_windows_and_not_prefills_besides() -> None:
    def refused(dcp: int, cp: int, *, has_windows: bool = False) -> list[str]:
        return division_refusals(SimpleNamespace(dcp_size=dcp, attn_cp_size=cp), has_windows=has_windows)

    assert refused(1, 1, has_windows=True) == refused(1, 4, has_windows=True) == refused(4, 1) == []
    [reason] = refused(2, 1, has_windows=True)
    assert reason.startswith("--dcp-size for models with windows")
    [reason] = refused(2, 2)
    assert reason.startswith("--dcp-size together with --attn-cp-size")
