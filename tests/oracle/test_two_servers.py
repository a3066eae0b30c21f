"""Prefill in one process and decode in another: every token is that of a run without a cache, whichever is killed when."""

from __future__ import annotations

from typing import Any

import pytest
from oracle.mix import Tiers
from two_servers import Setup, TwoServers

FAMILIES = ("Gemma 3", "Bamba")
"""Windows, and recurrent states."""


@pytest.mark.parametrize("family", FAMILIES)
def test_state_arrives_from_another_process_that_may_be_killed(family: str, record_property: Any) -> None:
    servers = TwoServers(Setup(family=family, seed=3))
    servers.serve(requests=30, kills=4)
    record_property("operations", servers.tally.tokens)
    assert sum(servers.kills.values()) == 4
    assert servers.tally.runs == 30


@pytest.mark.parametrize("family", FAMILIES)
def test_state_arrives_while_both_servers_live(family: str) -> None:
    servers = TwoServers(Setup(family=family, seed=4))
    assert servers.serve(requests=40, kills=0)["decode"]["arriving"] > 0


@pytest.mark.deep
@pytest.mark.parametrize("host", [True, False], ids=["host tier", "device alone"])
@pytest.mark.parametrize("family", ["Gemma 3", "Bamba", "Qwen3-Next", "GPT-OSS"])
def test_state_arrives_for_long(family: str, host: bool, record_property: Any) -> None:
    servers = TwoServers(Setup(family=family, seed=11, tiers=Tiers(host=host, paths=2.0, windows=2.0, states=6)))
    reports = servers.serve(requests=2000, kills=100)
    record_property("operations", servers.tally.tokens)
    assert sum(servers.kills.values()) == 100
    print(f"{family}, host {host}: {servers.tally.tokens:,} tokens, killed {servers.kills}, {reports}")
