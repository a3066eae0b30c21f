"""What a server with a store answers after an abort, a flush, new weights and restarts: nothing stale may be served.

`python server_staleness.py --source ../../..`, run by the engine's python. Two models of one shape share one folder of files.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from caches import chosen
from server_kits import VOCABULARY, Expectations, options_parser, prepared, saved_model, serving

ANSWER = 24


class Client:
    """A server, asked by HTTP."""

    def __init__(self, address: str) -> None:
        self._address = address

    def post(self, path: str, **body: Any) -> Any:
        """The answer of an address."""
        import requests

        return requests.post(self._address + path, json=body, timeout=120)

    def ask(self, prompts: list[list[int]]) -> tuple[list[list[int]], int]:
        """What the model answers, and how many prompt tokens came from the cache."""
        sampling = {"temperature": 0, "max_new_tokens": ANSWER, "ignore_eos": True}
        answers = self.post("/generate", input_ids=prompts, sampling_params=sampling).json()
        return [each["output_ids"] for each in answers], sum(each["meta_info"]["cached_tokens"] for each in answers)

    def abort_one(self, prompt: list[int]) -> str:
        """Abort a request while it runs; how it ended."""
        sampling = {"temperature": 0, "max_new_tokens": 3000, "ignore_eos": True}
        ended: list[Any] = []

        def generate() -> None:
            ended.append(self.post("/generate", rid="long", input_ids=prompt, sampling_params=sampling).json())

        thread = threading.Thread(target=generate)
        thread.start()
        time.sleep(2)
        self.post("/abort_request", rid="long")
        thread.join(60)
        return str(ended[0]["meta_info"]["finish_reason"]["type"]) if ended else "not at all"

    def flush(self) -> bool:
        """Empty the cache; a server says no while copies are under way."""
        for _ in range(100):
            if self.post("/flush_cache").status_code == 200:
                return True
            time.sleep(0.1)
        return False


def main() -> int:
    """Run three servers on one folder of files, say what held."""
    parser = options_parser(__doc__)
    parser.add_argument("--cache", default="ours+files")
    options: argparse.Namespace = parser.parse_args()
    work: Path = prepared(options)
    one, two = (saved_model(options.models, seed=seed) for seed in (2, 3))
    [cache] = chosen([options.cache])
    draw = random.Random(1)
    prompts = [[draw.randrange(VOCABULARY) for _ in range(300)] for _ in range(4)]
    expect = Expectations()

    @contextmanager
    def served(model: Path) -> Iterator[Client]:
        with serving(model, cache, work, options) as (_, address):
            yield Client(address)

    with served(one) as client:
        first, cached = client.ask(prompts)
        expect("first: nothing cached", holds=cached == 0, found=cached)
        again, cached = client.ask(prompts)
        expect("again: cached, equal", holds=cached > 0 and again == first, found=cached)
        ended = client.abort_one([*prompts[0], 1, 2, 3])
        expect("a running request aborted", holds=ended == "abort", found=ended)
        again, cached = client.ask(prompts)
        expect("after the abort: cached, equal", holds=cached > 0 and again == first, found=cached)
        expect("flushed", holds=client.flush())
        again, cached = client.ask(prompts)
        expect("after the flush: cached in files, equal", holds=cached > 0 and again == first, found=cached)

    with served(one) as client:
        again, cached = client.ask(prompts)
        expect("after a restart: cached in files, equal", holds=cached > 0 and again == first, found=cached)
        answer = client.post("/update_weights_from_disk", model_path=str(two))
        expect("weights updated", holds=answer.status_code == 200, found=answer.text[:200])
        other, cached = client.ask(prompts)
        expect("with new weights: nothing cached, other answers", holds=cached == 0 and other != first, found=cached)
        expect("flushed with the new weights", holds=client.flush())
        again, cached = client.ask(prompts)
        expect("after that flush: cached in files, equal", holds=cached > 0 and again == other, found=cached)
        answer = client.post("/update_weights_from_disk", model_path=str(one))
        again, cached = client.ask(prompts)
        expect("with the old weights again: nothing cached, equal", holds=cached == 0 and again == first, found=cached)

    with served(two) as client:
        alone, cached = client.ask(prompts)
        expect("a server of the other weights: nothing of the files", holds=cached == 0, found=cached)
        expect("its answers are those after the update", holds=alone == other)
    return 1 if expect.failed else 0


if __name__ == "__main__":
    sys.exit(main())
