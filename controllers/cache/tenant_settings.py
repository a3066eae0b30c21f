"""Tenants as they stand in a file of settings."""

from __future__ import annotations

from typing import Any

from unified_tree.controllers.storage_tier.store_settings import check_names
from unified_tree.declare.tenants import Amount, TenantGroup, Tenants
from unified_tree.inputs.arguments import items
from unified_tree.terms.errors import ConfigurationError


def tenants_of(given: Any) -> Tenants | None:
    """The tenants of a mapping with the names of `Tenants`, of `TenantGroup` and of `Amount`; None for None.

    Raises ConfigurationError for a name or a value that does not exist or fit.

    >>> tenants_of({"groups": [{"name": "gold", "namespaces": ["acme"], "floor": 0.3, "cap": {"pages": {"full": 9}}}]}).names
    ('', 'gold')
    """
    if given is None:
        return None
    check_names(Tenants, given, "tenants")
    if "named_by" in given:
        raise ConfigurationError("tenants: the engine's adapter says by what groups name its namespaces, not a file")
    groups = tuple(_group(group) for group in items(given.get("groups", ()), "tenants.groups", ConfigurationError))
    tenants = Tenants(**{**given, "groups": groups})
    if any(group.shares or group.one_namespace for group in groups):
        raise ConfigurationError("tenants: prefixes are shared by a PrefixCache alone, not inside an engine; leave sharing out")
    return tenants


def _group(given: Any) -> TenantGroup:
    check_names(TenantGroup, given, "tenants.groups")
    missing = [name for name in ("name", "namespaces") if name not in given]
    if missing:
        raise ConfigurationError(f"tenants.groups: {given!r} has no {missing[0]}")
    amounts = {name: _amount(given[name], f"{given['name']}: {name}") for name in ("floor", "cap") if name in given}
    return TenantGroup(**{**given, **amounts})


def _amount(given: Any, where: str) -> Any:
    if not isinstance(given, dict):
        return given
    check_names(Amount, given, where)
    return Amount(**given)
