"""Declarations take numpy's numbers and bools, and refuse what is none in the library's words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from unified_tree import Component, ConfigurationError, Path, TenantGroup, Tenants
from unified_tree.components import composition_for


def test_numpys_numbers_become_those_of_python() -> None:
    whole: Any = np.int64(3)
    tenants = Tenants(groups=(), compared_groups=whole, reported_groups=whole)
    assert type(tenants.compared_groups) is int and type(tenants.reported_groups) is int
    required: Any = np.True_
    assert Component(name="full", coverage=Path(), required=required).required is True


def test_what_is_no_number_is_refused() -> None:
    nothing: Any = None
    text: Any = "x"
    with pytest.raises(ConfigurationError, match="floor"):
        TenantGroup(name="quiet", namespaces=("a",), floor=nothing)
    for share in (nothing, text):
        with pytest.raises(ConfigurationError, match="min_path_share"):
            composition_for("llama-3.1-8b").split_budget(1 << 30, min_path_share=share)
