"""Runs the test kits of SGLang's own wheel against a server with any cache: `python server_kits.py --cache builtin`. Other
scripts take `serving` and `Expectations` from here.

The model is a tiny Llama with the vocabulary of 32,000 tokens that the kits expect, and a tokenizer of whole words. Left out:
the branching kit, which asks for the hits of state space models, and what needs a data set (GSM8K).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import plugin_path
import tiny_models
from caches import CACHES, CONFIG_VARIABLE, Cache, chosen
from run_mixes import CHECKS

VOCABULARY = 32_000
THRESHOLD = 1e-4
"""Of the divergence between logprobs with and without hits; SGLang's own tests allow more."""


def saved_model(models: Path, *, name: str = "llama", seed: int = 2) -> Path:
    """The model with its tokenizer."""
    folder = tiny_models.saved(name, models, seed=seed, vocab_size=VOCABULARY)
    if not (folder / "tokenizer.json").exists():
        import transformers
        from tokenizers import Regex, Tokenizer
        from tokenizers.models import WordLevel
        from tokenizers.pre_tokenizers import Split

        words = {f"w{i}": i for i in range(VOCABULARY)}
        tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
        tokenizer.pre_tokenizer = Split(Regex(r"w\d+|\s+|[^\sw]+"), "isolated")
        saver: Any = transformers.PreTrainedTokenizerFast
        saver(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(folder)
    return folder


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def started(
    model: Path, cache: Cache, work: Path, options: argparse.Namespace, *, ranks: int = 1, stages: int = 1, **more: object
) -> tuple[subprocess.Popen[bytes], str]:
    """A server that answers, and its address; `more` are arguments of SGLang."""
    port = free_port()
    arguments: dict[str, object] = {
        "model-path": model,
        "host": "127.0.0.1",
        "port": port,
        "device": "cpu",
        "dtype": "float32",
        "attention-backend": "torch_native",
        "max-total-tokens": 20_000,
        "max-running-requests": 32,
        "chunked-prefill-size": 256,
        "context-length": 4096,
        "page-size": options.page_size,
        "log-level": "warning",
    }
    command = [sys.executable, "-W", "ignore", "-m", "sglang.launch_server", "--disable-overlap-schedule"]
    for name, value in {**arguments, **cache.engine, **more}.items():
        command += [f"--{name.replace('_', '-')}"] + ([] if value is True else [str(value)])
    environment = {
        **os.environ,
        **CHECKS,
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": plugin_path.joined(work, options.source),
        CONFIG_VARIABLE: json.dumps(cache.settings(work / "files")),
    }
    if ranks * stages > 1:  # SGLang asks for a core of its own for each rank, where a machine has fewer memory nodes
        command += ["--tp-size", str(ranks), "--pp-size", str(stages)]
        environment["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(str(core) for core in range(ranks * stages))
    log = (work / f"server.{cache.name}.log").open("wb")
    server = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    address = f"http://127.0.0.1:{port}"
    import requests

    end = time.monotonic() + options.timeout
    while time.monotonic() < end and server.poll() is None:
        try:
            if requests.get(f"{address}/health", timeout=5).status_code == 200:
                return server, address
        except requests.RequestException:
            pass
        time.sleep(1)
    server.terminate()
    raise RuntimeError(f"no server: {log.name}")


@contextmanager
def serving(
    model: Path, cache: Cache, work: Path, options: argparse.Namespace, **more: Any
) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """As `started`; the server ends at the end."""
    server, address = started(model, cache, work, options, **more)
    try:
        yield server, address
    finally:
        server.terminate()
        server.wait(60)


class Expectations:
    """What is expected of a server, each told in a line.

    Attributes:
        failed: those that did not hold.
    """

    def __init__(self) -> None:
        self.failed: list[str] = []

    def __call__(self, what: str, *, holds: bool, found: object = "") -> None:
        """Tell whether one holds, with what was found."""
        print(f"{what}: {'yes' if holds else 'NO'} {found}", flush=True)
        if not holds:
            self.failed.append(what)


def kits(address: str, model: Path, work: Path, server: subprocess.Popen[bytes]) -> dict[str, Callable[[], object]]:
    """The kits by their names, each ready to run."""
    from sglang.test import kl_multiturn_utils as multiturn
    from sglang.test.kits import abort_timeout_kit, cache_hit_kit, radix_cache_server_kit

    radix: Any = radix_cache_server_kit
    radix.gen_radix_tree.__defaults__ = (120, 64)
    draw = random.Random(5)

    def ids(count: int, length: int) -> list[list[int]]:
        return [[draw.randrange(VOCABULARY) for _ in range(length)] for _ in range(count)]

    heads = [head for head in ids(3, 200) for _ in range(3)]
    decoded = multiturn.default_decode_cache_assert
    common = {"assert_decode_cached_tokens": decoded, "max_new_tokens": 32, "turn_suffixes": [ids(9, 100), ids(9, 60)]}
    talk = [{"conversations": [{"value": " ".join(f"w{i}" for i in row)}] * 2} for row in ids(60, 300)]
    (work / "talk.json").write_text(json.dumps(talk))

    class Abort(abort_timeout_kit.AbortAllMixin, unittest.TestCase):  # type: ignore[misc]  # untyped where no engine is
        base_url = address
        process = server
        abort_all_max_new_tokens = 3500
        abort_all_num_requests = 16

    return {
        "radix attention": lambda: radix.run_radix_attention_test(address),
        "multi-turn KL": lambda: multiturn.test_input_output_logprobs_match_helper(
            address,
            "llama",
            THRESHOLD,
            ids(9, 150),
            **common,
        ),
        "prefill-cache-hit KL, 3 branches": lambda: multiturn.test_input_output_logprobs_match_prefill_cache_hit_helper(
            address,
            "llama",
            THRESHOLD,
            prefix_input_ids=heads,
            full_input_ids=[head + tail for head, tail in zip(heads, ids(9, 80), strict=True)],
            assert_prefill_cached_tokens=multiturn.default_prefill_cache_assert,
            branches_per_group=3,
            **common,
        ),
        "decode-cache-hit KL, 3 branches": lambda: multiturn.test_input_output_logprobs_match_decode_cache_hit_helper(
            address,
            "llama",
            THRESHOLD,
            heads,
            branches_per_group=3,
            **common,
        ),
        "multi-turn hits": lambda: cache_hit_kit.run_multiturn_cache_hit_test(
            address, str(model), num_clients=4, request_length=128, output_length=16, dataset_path=str(work / "talk.json")
        ),
        "abort all": lambda: Abort("test_abort_all").debug(),
    }


def options_parser(description: str | None) -> argparse.ArgumentParser:
    """What all programs that start a server are told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--page-size", type=int, default=1)
    parser.add_argument("--source", type=Path, help="a checkout of unified_tree that the engine imports, if not installed")
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "unified-tree-tiny-models")
    parser.add_argument("--work", type=Path, help="where logs are kept; a new folder if left out")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for the server to start")
    return parser


def prepared(options: argparse.Namespace) -> Path:
    """The folder for logs and files, and what SGLang and the stand-ins need in this process."""
    work: Path = options.work or Path(tempfile.mkdtemp(prefix="unified-tree-kits-"))
    for folder in (work / "files", options.models):
        folder.mkdir(parents=True, exist_ok=True)
    sys.path[:0] = plugin_path.joined(work, options.source).split(os.pathsep)
    os.environ["SGLANG_USE_CPU_ENGINE"] = "1"
    return work


def main() -> int:
    """Start a server, run the kits, say which passed."""
    parser = options_parser(__doc__)
    parser.add_argument("--cache", default="builtin", help="of " + ",".join(cache.name for cache in CACHES))
    parser.add_argument("--kits", default="", help="of those whose name holds this")
    options = parser.parse_args()
    work = prepared(options)
    model = saved_model(options.models)
    [cache] = chosen([options.cache])
    failed = 0
    with serving(model, cache, work, options) as (server, address):
        for name, run in kits(address, model, work, server).items():
            if options.kits not in name:
                continue
            start = time.monotonic()
            try:
                run()
                outcome = "passed"
            except (AssertionError, RuntimeError, OSError, KeyError) as error:
                outcome = f"failed: {type(error).__name__}: {str(error)[:300]}"
                failed += 1
            print(f"{name}: {outcome} ({time.monotonic() - start:.0f} s)", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
