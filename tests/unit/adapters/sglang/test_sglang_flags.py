"""Each of SGLang's options that concern a cache is read, refused, or SGLang's own: a new one makes this fail."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from sglang_flags import FLAGS, MEANINGS

from unified_tree.controllers.adapters.sglang.refusals import (
    DATA_PARALLEL_ATTENTION,
    DECODE_SERVER,
    DISAGGREGATED,
    REFUSED_FLAGS,
    RefusedFlag,
    apart_refusals,
    division_refusals,
    flag_refusals,
)

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


@pytest.mark.parametrize("flag", [flag for flag in REFUSED_FLAGS if flag.values is None], ids=lambda flag: flag.flag)
def test_any_value_but_the_default_is_refused(flag: RefusedFlag) -> None:
    assert flag_refusals(SimpleNamespace(**DEFAULTS)) == []
    for value in ("other", 0.25, 2):
        [reason] = flag_refusals(SimpleNamespace(**{**DEFAULTS, flag.field: value}))
        assert reason == f"{flag.flag} {value} ({flag.why})"


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
