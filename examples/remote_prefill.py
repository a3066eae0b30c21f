"""Prefill on one server, decode on another: what each of the two caches is asked, and which pages are sent."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from unified_tree import Component, Key, Path, Point, Trailing
from unified_tree.controllers import Lease, PrefixCache

PAGE = 4
PARTS = [
    Component(name="full", coverage=Path()),
    Component(name="swa", coverage=Trailing(7)),
    Component(name="mamba", coverage=Point()),
]
COUNTS = {"full": 64, "swa": 32, "mamba": 8}
prefill, decode = (PrefixCache(PARTS, page_size=PAGE, page_counts=COUNTS) for _ in range(2))
there, here = ({name: np.zeros(count, int) for name, count in COUNTS.items()} for _ in range(2))  # the pools of both servers


def pages(lease: Lease, component: str, first_token: int) -> Any:
    """A lease's pages from a token on; of a state its only one."""
    return [lease.state_page] if component == "mamba" else lease.pages(component, first_token // PAGE)


def send(prompt: Sequence[int], write_from: Mapping[str, int]) -> dict[str, Any]:
    """On the prefill server: compute a prompt, and send what the decode server lacks."""
    with prefill.acquire(Key(prompt)) as lease:
        prefill.allocate(lease, len(prompt))
        for name in COUNTS:  # the model computes the tokens from lease.compute_from on
            there[name][pages(lease, name, lease.write_from[name])] = len(prompt)
        prefill.commit(lease, len(prompt))
        return {name: there[name][pages(lease, name, first)] for name, first in write_from.items()}


def serve(prompt: list[int], answer: list[int]) -> list[int]:
    """On the decode server: serve a request, and return its tokens."""
    lease = decode.acquire(Key(prompt), arriving=True)  # pages for the whole prompt are reserved
    try:
        for name, sent in send(prompt, lease.write_from).items():
            here[name][pages(lease, name, lease.write_from[name])] = sent
    except ConnectionError:  # the prefill server is gone, and no longer writes
        decode.release(lease)
        raise
    decode.commit(lease, len(prompt))  # it has arrived
    print(lease.cached_tokens, dict(lease.write_from), lease.state_tokens)
    decode.allocate(lease, len(prompt) + len(answer))  # decode as ever, from lease.compute_from on
    decode.commit(lease, prompt + answer)
    decode.release(lease)
    return prompt + answer


if __name__ == "__main__":
    first_turn = serve([*range(18)], [7] * 6)
    serve([*first_turn, *range(9)], [8] * 6)
    print(decode.stats().arriving_tokens, decode.tree.check())
