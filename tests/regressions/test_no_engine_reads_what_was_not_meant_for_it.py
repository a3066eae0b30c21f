"""A variable of `lmcache_in_process` was taken for an unknown setting of `lmcache`, and so were those that Kubernetes writes
for a service called unified-tree-redis for settings of `redis`: neither engine could be opened."""

from __future__ import annotations

import pytest

from unified_tree.controllers.adapters.lmcache.lmcache_settings import InProcessSettings, LmcacheSettings
from unified_tree.controllers.storage.engine_settings import load_settings
from unified_tree.controllers.storage.redis import RedisSettings
from unified_tree.terms.errors import ConfigurationError

KUBERNETES = {
    f"{service}_{rest}": value
    for service in ("UNIFIED_TREE_REDIS", "UNIFIED_TREE__REDIS", "UNIFIED_TREE__REDIS__ADDRESS", "UNIFIED_TREE")
    for rest, value in {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "6379",
        "SERVICE_PORT_ADDRESS": "6379",
        "PORT": "tcp://10.0.0.1:6379",
        "PORT_6379_TCP": "tcp://10.0.0.1:6379",
        "PORT_6379_TCP_PROTO": "tcp",
        "PORT_6379_TCP_PORT": "6379",
        "PORT_6379_TCP_ADDR": "10.0.0.1",
    }.items()
}


def test_an_engine_whose_name_begins_with_anothers() -> None:
    for model in ("unified_tree__lmcache_in_process__model", "UNIFIED_TREE_LMCACHE_IN_PROCESS_MODEL"):
        environment = {model: "m", "unified_tree__lmcache__daemon": "127.0.0.1:5555"}
        assert load_settings(LmcacheSettings, "lmcache", {"model": "x"}, environment=environment).model == "x"
    environment = {"unified_tree__lmcache_in_process__model": "m", "unified_tree__lmcache__daemon": "h:1"}
    assert load_settings(InProcessSettings, "lmcache_in_process", {}, environment=environment).model == "m"


@pytest.mark.parametrize("service", ["own", "ours"])
def test_a_service_of_kubernetes_whose_name_is_like_an_engines(service: str) -> None:
    environment = dict(KUBERNETES)
    explicit = {"address": "127.0.0.1:6379"}
    if service == "ours":
        environment["unified_tree__redis__address"] = explicit.pop("address")
    assert load_settings(RedisSettings, "redis", explicit, environment=environment) == RedisSettings(address="127.0.0.1:6379")


def test_what_is_meant_for_an_engine_and_misspelt_is_an_error_that_names_what_there_is() -> None:
    for name, said in (
        ("unified_tree__redis__adress", "unknown setting 'adress'.*its settings are address, cluster,"),
        ("unified_tree__redis__in_process__model", "unknown setting 'in_process__model'"),
        ("UNIFIED_TREE__REDIS__PASSWORD", "UNIFIED_TREE__REDIS__PASSWORD must be written unified_tree__redis__password"),
        ("unified_tree__redis__Password", "must be written unified_tree__redis__password"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            load_settings(RedisSettings, "redis", {"address": "h:1"}, environment={name: "x"})


@pytest.mark.parametrize("name", ["", "Redis", "a__b", "a_", "_a", "a-b", "lmcache__in_process", 7])
def test_a_name_that_could_be_read_as_anothers_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="an engine's name must be"):
        load_settings(RedisSettings, name, {"address": "h:1"}, environment={})
