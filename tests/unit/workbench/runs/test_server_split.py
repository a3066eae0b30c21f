"""The split of a device for a server."""

from __future__ import annotations

import pytest

from unified_tree import ConfigurationError
from unified_tree.components import composition_for
from unified_tree.controllers.workbench.runs.plan import split_for_server
from unified_tree.controllers.workbench.server.server_settings import ServerSettings

GIB = 1 << 30


@pytest.mark.parametrize(
    ("model", "gib", "pages"),
    [("gemma-3-27b", 1.0, {}), ("gpt-oss-20b", 0.01, {}), ("qwen3-32b", 0.001, {}), ("gemma-3-27b", 1.0, {"full": 1000})],
)
def test_a_device_that_is_too_small_is_told_a_size_that_is_enough(model: str, gib: float, pages: dict[str, int]) -> None:
    composition, settings = composition_for(model), ServerSettings()
    with pytest.raises(ConfigurationError, match=f"^{gib:g} GiB cannot hold one request") as caught:
        split_for_server(composition, int(gib * GIB), settings, pages)
    message = str(caught.value)
    assert ("one step of 8,192 prompt tokens" in message) == ("--chunk-tokens" in message) == (model != "qwen3-32b")
    enough = float(message.partition("--device-gib ")[2].partition(",")[0])
    assert split_for_server(composition, int(enough * GIB), settings, pages)
    with pytest.raises(ConfigurationError, match="the pools are"):
        split_for_server(composition, int(gib * GIB), settings, {"none": 1})
