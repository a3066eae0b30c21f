"""A visit with SGLang's cache core: the same scripts through the calls of its scheduler. Runs in SGLang's own interpreter.

`PYTHONPATH=. PYTHON tests/museum/sglang_visit.py` prints a JSON object: the prompt tokens that hit, by exhibit. What its core
has no kinds for, what needs a host tier (its transfers are for GPUs), and what is decided above its core is left out.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
from array import array
from typing import Any

from exhibits import EXHIBITS, GRID, WINDOW, Exhibit, Finish, Start, Step

from benches.sglang_pools import ROOMY, STATE_GRID_TOKENS, build
from benches.sglang_server import SglangServer
from benches.subject import Capacity

assert GRID == STATE_GRID_TOKENS
KINDS = {("full",): "full", ("full", "swa"): "full_swa", ("full", "mamba"): "full_mamba"}


class Server(SglangServer):
    """A server with an exhibit's window and pools."""

    def furnish(self, exhibit: Exhibit, components: str) -> None:
        """Start with an empty cache."""
        size, pools = exhibit.page_size, exhibit.pools
        capacity = Capacity(
            full_tokens=pools["full"] * size if "full" in pools else ROOMY.full_tokens,
            window_tokens=pools["swa"] * size if "swa" in pools else ROOMY.window_tokens,
            states=pools.get("mamba", ROOMY.states),
        )
        has_draft = any(component.name == "draft" for component in exhibit.components)
        self.page_size = size
        self.cache = build(components, size, capacity, counting=False, window_tokens=WINDOW, has_draft=has_draft)
        self.rows, self.allocator = self.cache.req_to_token_pool, self.cache.token_to_kv_pool_allocator
        self.window, self.state = components == "full_swa", components == "full_mamba"
        self.extra = self.state and size > 1


def kinds(exhibit: Exhibit) -> str | None:
    """What its core calls the components of an exhibit; None for what it cannot run."""
    if not exhibit.is_of_an_engine:
        return None
    return KINDS.get(tuple(component.name for component in exhibit.components if component.required))


def hits(exhibit: Exhibit, components: str) -> int:
    """The prompt tokens that its core hits."""
    server = Server(counting=False)
    server.furnish(exhibit, components)
    running: dict[int, Any] = {}
    total = 0
    for step in exhibit.script:
        total += _take(server, step, running, exhibit.chunk_tokens)
    return total


def _take(server: Server, step: Step, running: dict[int, Any], chunk_tokens: int) -> int:
    if isinstance(step, Start):
        request = server.begin(array("q", step.request.prompt))
        running[id(step.request)] = request
        server.prefill(request, chunk_tokens)
        return request.cached_tokens
    assert isinstance(step, Finish)
    request, output = running.pop(id(step.request)), step.request.output
    if output:
        server.decode(request, len(output), singly=True)
    server.finish(request, array("q", step.request.prompt + output))
    return 0


def main() -> None:
    """Print what is hit."""
    found: dict[str, int] = {}
    for exhibit in EXHIBITS:
        components = kinds(exhibit)
        if components is not None:
            found[exhibit.name] = hits(exhibit, components)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
