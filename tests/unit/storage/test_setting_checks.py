"""Every setting of every engine and linker: exact types, finite numbers within bounds that the message says, no address of
nobody.
"""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, get_type_hints

import pytest
from stored_pages import pool

from unified_tree.controllers.adapters.lmcache.lmcache_settings import InProcessSettings, LmcacheSettings
from unified_tree.controllers.storage import FileLimits, MemoryStorage, StorageRegistry
from unified_tree.controllers.storage.engine_settings import host_and_port, kinds
from unified_tree.controllers.storage.guarded_storage import CircuitBreaker
from unified_tree.controllers.storage.hf3fs import Hf3fsSettings
from unified_tree.controllers.storage.mooncake import MooncakeSettings
from unified_tree.controllers.storage.redis import RedisSettings
from unified_tree.controllers.storage.simm import SimmSettings
from unified_tree.terms.errors import ConfigurationError

GOOD: dict[Any, dict[str, Any]] = {
    RedisSettings: {"address": "h:1"},
    MooncakeSettings: {"master": "h:1"},
    SimmSettings: {"manager_address": "h:1"},
    Hf3fsSettings: {"metadata": "http://127.0.0.1:1", "directory": "d", "rank": "r", "capacity_bytes": 1 << 20},
    LmcacheSettings: {"daemon": "h:1", "model": "m"},
    InProcessSettings: {"model": "m"},
    FileLimits: {},
}
WRONG: dict[type, list[object]] = {
    bool: [0, 1, "yes", None],
    str: [7, None, b"h:1", ["h:1"]],
    int: [True, -1, 1.0, math.nan, math.inf, "1", None, 1 << 70],
    float: [True, -1, -0.5, math.nan, math.inf, -math.inf, "1", None, 1e300],
}


@pytest.mark.parametrize("kind", list(GOOD))
def test_no_field_takes_what_it_is_not(kind: Any) -> None:
    kind(**GOOD[kind])
    types = get_type_hints(kind)
    for field in fields(kind):
        [of] = kinds(types[field.name])
        for value in WRONG[of]:
            with pytest.raises(ConfigurationError, match=f"{field.name} must be"):
                kind(**GOOD[kind] | {field.name: value})


@pytest.mark.parametrize(
    ("kind", "given", "said"),
    [
        (RedisSettings, {"address": "redis://h:1"}, "address must be host:port"),
        (RedisSettings, {"address": "me@h:1"}, "address must be host:port"),
        (RedisSettings, {"address": "a b:1"}, "address must be host:port"),
        (RedisSettings, {"address": "::1:6379"}, "address must be host:port"),
        (RedisSettings, {"address": "unix:" + "x" * 108}, "address must be host:port or unix:PATH"),
        (RedisSettings, {"tls_ca_file": "ca.pem"}, "need tls"),
        (RedisSettings, {"tls": True, "tls_key_file": "key.pem"}, "needs a tls_cert_file"),
        (RedisSettings, {"tls": True, "address": "unix:/run/s"}, "a unix socket has no tls"),
        (RedisSettings, {"scan_keys": 0}, "scan_keys must be at least 1"),
        (MooncakeSettings, {"master": "http://h:1"}, "master must be host:port"),
        (MooncakeSettings, {"local_hostname": ""}, "local_hostname must be an address"),
        (MooncakeSettings, {"metadata_server": " "}, "metadata_server must be an address"),
        (MooncakeSettings, {"devices": "mlx5_0"}, "need protocol rdma"),
        (SimmSettings, {"manager_address": "http://h:1"}, "manager_address must be host:port"),
        (SimmSettings, {"devices": "a,,b"}, "devices must be names"),
        (SimmSettings, {"log_file": "a\0b"}, "log_file must be a path"),
        (Hf3fsSettings, {"metadata": "http://127.0.0.1:1/#x"}, "metadata must be"),
        (Hf3fsSettings, {"metadata": "http://:secret@127.0.0.1:1"}, "metadata must be"),
        (Hf3fsSettings, {"token": " secret"}, "token must be printable ASCII without white space around it"),
        (LmcacheSettings, {"daemon": "user@h:1"}, "daemon must be host:port"),
        (LmcacheSettings, {"probe_attempts": 0}, "probe_attempts must be at least 1"),
    ],
)
def test_what_would_be_ignored_or_fail_later_is_refused(kind: Any, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        kind(**GOOD[kind] | given)


@pytest.mark.parametrize(
    ("engine", "given", "said"),
    [
        ("redis", {}, "address is missing: give it, or set unified_tree__redis__address"),
        ("redis", {"address": ""}, "address must be host:port or unix:PATH"),
        ("redis", {"address": "x" * 70 + ":1"}, "address must be host:port or unix:PATH"),
        ("redis", {"address": "a\0b:1"}, "address must be a path or other text without NUL"),
        ("redis", {"address": "unix:a\0b"}, "address must be a path or other text without NUL"),
        ("redis", {"address": "unix:"}, "address must be host:port or unix:PATH"),
        ("redis", {"address": "host:99999"}, "address must be host:port or unix:PATH"),
        ("redis", {"address": "a:1,b:2"}, "more than one address needs cluster"),
        ("redis", {"address": "a:1", "cluster": True, "database": 1}, "a cluster has no database 1"),
        ("redis", {"address": "a:1", "username": "me"}, "a username needs a password"),
        ("redis", {"address": "a:1", "key_prefix": "a*"}, "key_prefix must be"),
        ("redis", {"address": "a:1", "key_prefix": "{a}"}, "key_prefix must be"),
        ("redis", {"address": "a:1", "request_timeout_s": 0}, "request_timeout_s must be positive"),
        ("redis", {"address": "a:1", "passwrod": "x"}, "unknown setting 'passwrod'"),
        ("mooncake", {}, "master is missing: give it, or set unified_tree__mooncake__master"),
        ("mooncake", {"master": "somewhere"}, "master must be host:port"),
        ("mooncake", {"master": "x" * 70 + ":1"}, "master must be host:port"),
        ("mooncake", {"master": "a:0"}, "master must be host:port"),
        ("mooncake", {"master": "h:1", "protocol": "smoke"}, "protocol must be tcp or rdma"),
        ("mooncake", {"master": "h:1", "key_prefix": "a.*"}, "key_prefix must be"),
        ("mooncake", {"master": "h:1", "key_prefix": ""}, "key_prefix must be"),
        ("mooncake", {"master": "h:1", "batch_bytes": 0}, "batch_bytes must be positive"),
        ("mooncake", {"master": "h:1", "retry_pause_s": 0}, "retry_pause_s must be positive"),
        ("mooncake", {"master": "h:1", "maste": "h:1"}, "unknown setting 'maste'"),
        ("simm", {}, "manager_address is missing: give it, or set unified_tree__simm__manager_address"),
        ("simm", {"manager_address": "somewhere"}, "manager_address must be host:port"),
        ("simm", {"manager_address": "h:99999"}, "manager_address must be host:port"),
        ("simm", {"manager_address": "h:1", "key_prefix": "a b"}, "key_prefix must be"),
        ("simm", {"manager_address": "h:1", "batch_bytes": 0}, "batch_bytes must be positive"),
        ("simm", {"manager_address": "h:1", "largest_value_bytes": 1 << 30}, "at least 1 and at most 67088384"),
        ("simm", {"manager_address": "h:1", "manager_adress": "h:1"}, "unknown setting 'manager_adress'"),
    ],
)
def test_settings_that_no_engine_can_have_are_named_when_it_is_opened(engine: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        StorageRegistry().open(engine, [pool()], **given)


def test_all_that_is_wrong_is_named_at_once_and_no_secret() -> None:
    with pytest.raises(
        ConfigurationError, match=r"password must be str, not what it is.*database must be at least 0.*ttl_s"
    ) as caught:
        RedisSettings(address="h:1", password=12345, database=-1, ttl_s=math.nan)  # type: ignore[arg-type]
    assert "12345" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["h:0", "h:65536", "h:\u0663", "h:1 ", ":1", "h", "[::1]", "[h]:1", "::1:1", "a/b:1", "h,i:1", ""]
)
def test_no_address(text: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        host_and_port(text)


def test_constructors() -> None:
    for pause in (math.nan, math.inf, 0, -1.0, True, "1"):
        with pytest.raises(ConfigurationError, match="pause_s must be"):
            CircuitBreaker(pause)  # type: ignore[arg-type]
    for capacity in (math.nan, math.inf, 1e9, True, "1", -1):
        with pytest.raises(ConfigurationError, match="capacity_bytes must be"):
            MemoryStorage([pool()], capacity)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="must be opened by a function"):
        StorageRegistry().register("mine", 5)  # type: ignore[arg-type]
