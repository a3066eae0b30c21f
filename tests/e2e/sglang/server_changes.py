"""A server with a store whose weights, cache and store change at random moments: every answer must be that of its weights.

`python server_changes.py --source ../../.. --rounds 200 --seed 0`, run by the engine's python. Two models of one shape take
turns, by updates from disk and from tensors, with a label or none, that flush or do not; a flush comes then before the next
request. Between them requests, flushes, and the store detached, attached and cleared. With `--dp 2` two ranks attend to
requests of their own (data-parallel attention, which SGLang's Llama has not); with `--pp 2` two pipeline stages keep one store
while they serve.
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from caches import HOST, STORE, Cache, chosen
from server_kits import VOCABULARY, options_parser, prepared, saved_model, serving
from server_staleness import Client

KEY = "secret"


class AdminClient(Client):
    """With the key that SGLang asks for where a store is attached or detached.

    Args:
        ranks: of the server's, each of which is given the weights.
    """

    def __init__(self, address: str, ranks: int) -> None:
        super().__init__(address)
        self._ranks = ranks

    def post(self, path: str, **body: Any) -> Any:
        """The answer of an address."""
        return self._request("POST", path, body)

    def _request(self, method: str, path: str, body: dict[str, Any]) -> Any:
        import requests

        headers = {"Authorization": f"Bearer {KEY}"}
        return requests.request(method, self._address + path, json=body, headers=headers, timeout=120)

    def store(self, method: str, **body: Any) -> Any:
        """The answer of the address of the store."""
        return self._request(method, "/hicache/storage-backend", body)

    def load(self, model: Path, *, label: str | None, flush: bool, in_parts: int) -> list[Any]:
        """Update the weights from tensors, in so many calls of one session."""
        from safetensors.torch import load_file
        from sglang.srt.utils import MultiprocessingSerializer
        from torch.multiprocessing import set_sharing_strategy

        set_sharing_strategy("file_system")  # type: ignore[no-untyped-call]  # a server of another process has no key to this one's descriptors
        tensors = [pair for file in sorted(model.glob("*.safetensors")) for pair in load_file(file).items()]
        answers = [self.post("/begin_weight_update")]
        for part in range(in_parts):
            data = MultiprocessingSerializer.serialize(tensors[part::in_parts])
            answers.append(
                self.post(
                    "/update_weights_from_tensor",
                    serialized_named_tensors=[base64.b64encode(data).decode()] * self._ranks,
                    weight_version=label,
                    flush_cache=flush and part == in_parts - 1,
                )
            )
        return [*answers, self.post("/end_weight_update")]


class Changes:
    """Random changes of one server.

    Args:
        wanted: by model, what each prompt is answered without a cache.
        keeps_store: the store is neither attached nor detached.
    """

    def __init__(
        self,
        client: AdminClient,
        draw: random.Random,
        prompts: list[list[int]],
        wanted: dict[Path, Any],
        *,
        keeps_store: bool = False,
    ) -> None:
        self.keeps_store = keeps_store
        self.client, self.draw, self.prompts, self.wanted = client, draw, prompts, wanted
        self.model = next(iter(wanted))
        self.has_store = True
        self.cached = 0
        self.done: Counter[str] = Counter()

    def ask(self) -> None:
        """Ask for some prompts."""
        some = self.draw.sample(range(len(self.prompts)), self.draw.randint(1, 5))
        found, cached = self.client.ask([self.prompts[index] for index in some])
        assert found == [self.wanted[self.model][index] for index in some], f"{self.model}: {some}"
        self.cached += cached
        self.done["requests"] += len(some)

    def flush(self) -> None:
        """Empty the cache."""
        assert self.client.flush()

    def update(self) -> None:
        """Load the weights of a model."""
        self.model = self.draw.choice(list(self.wanted))
        label = self.draw.choice((None, self.model.name))
        flush = self.draw.random() < 0.7
        if self.draw.random() < 0.5:
            body = {"model_path": str(self.model), "weight_version": label, "flush_cache": flush}
            answers = [self.client.post("/update_weights_from_disk", **body)]
        else:
            answers = self.client.load(self.model, label=label, flush=flush, in_parts=self.draw.randint(1, 3))
        assert all(answer.status_code == 200 for answer in answers), [answer.text for answer in answers]
        if not flush:
            self.flush()

    def fail(self) -> None:
        """Ask for weights that do not exist."""
        answer = self.client.post("/update_weights_from_disk", model_path=str(self.model / "nothing"))
        assert answer.status_code == 400, answer.text

    def detach(self) -> None:
        """Detach the store, if there is one."""
        answer = self.client.store("DELETE")
        assert answer.status_code == 200, answer.text
        self.has_store = False

    def attach(self) -> None:
        """Attach the store, which is refused if there is one."""
        answer = self.client.store("PUT", hicache_storage_backend="file")
        assert answer.status_code == (400 if self.has_store else 200), answer.text
        assert not self.has_store or "there is one already" in answer.text, answer.text
        self.has_store = True

    def clear(self) -> None:
        """Delete what is stored."""
        answer = self.client.post("/hicache/storage-backend/clear")
        assert answer.status_code == (200 if self.has_store else 400), answer.text

    def round(self) -> None:
        """One of them."""
        kinds = [self.ask, self.flush, self.update, self.fail, self.detach, self.attach, self.clear]
        weights = (12, 4, 3, 1, *((0, 0) if self.keeps_store else (1, 2)), 1)
        kind = self.draw.choices(kinds, weights)[0]
        self.done[kind.__name__] += 1
        kind()


def main() -> int:
    """Learn the answers of both models without a cache, then change a server that has one."""
    parser = options_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dp", type=int, default=1, help="ranks that attend to requests of their own")
    parser.add_argument("--pp", type=int, default=1, help="stages of a pipeline")
    options: argparse.Namespace = parser.parse_args()
    work: Path = prepared(options)
    divided: dict[str, Any] = {} if options.dp == 1 else {"attention_backend": "cpu_windows"}
    models = [saved_model(options.models, name="mellum" if divided else "llama", seed=seed) for seed in (2, 3)]
    draw = random.Random(options.seed)
    heads = [[draw.randrange(VOCABULARY) for _ in range(length)] for length in (64, 150, 300)]
    prompts = [draw.choice(heads) + [draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 60))] for _ in range(24)]
    [none] = chosen(["none"])
    wanted: dict[Path, Any] = {}
    answers = work / f"answers.{options.seed}.json"
    if answers.exists():
        wanted = {Path(name): found for name, found in json.loads(answers.read_text()).items()}
    for model in models if not wanted else ():
        with serving(model, none, work, options, **divided) as (_, address):
            wanted[model], _ = Client(address).ask(prompts)
    answers.write_text(json.dumps({str(model): found for model, found in wanted.items()}))
    store = {"engine": "file", "directory": str(work / "files"), "capacity_bytes": 1 << 28, "prefetch": {"min_tokens": 8}}
    config = {**HOST, "store": {**store, "weights_version": "run"}, "inspector": {"port": 0}}
    cache = Cache(name="ours+named", engine={**STORE, "admin_api_key": KEY, "enable_metrics": True}, config=config)
    if divided:  # by the older of SGLang's two spellings
        divided |= {"enable_dp_attention": True, "dp_size": options.dp, "load_balance_method": "round_robin"}
    more = {"max_total_tokens": 1500, "hicache_ratio": 2.0, **divided}
    with serving(models[0], cache, work, options, ranks=options.dp, stages=options.pp, **more) as (_, address):
        changes = Changes(AdminClient(address, options.dp), draw, prompts, wanted, keeps_store=options.pp > 1)
        for number in range(options.rounds):
            try:
                changes.round()
            except AssertionError as error:
                print(f"round {number} of seed {options.seed}, after {dict(changes.done)}: {error}", flush=True)
                return 1
    print(f"{dict(changes.done)}, {changes.cached} tokens cached, every answer that of its weights")
    return 0


if __name__ == "__main__":
    sys.exit(main())
