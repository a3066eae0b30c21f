"""How long a prompt takes that is computed, and the same one when the host tier has it: `python host_hits.py SPEC.json`.

Each prompt is asked for with one new token, first when nothing of it is cached, then after other prompts have taken its place
on device. The time is that of the whole request, as its client sees it.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import time
from pathlib import Path
from typing import Any

VOCABULARY = 512
LARGE = {
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
}
"""The shape of Llama 3.1 8B, whose vocabulary is left out."""


def saved_shape(parent: Path, *, is_large: bool) -> Path:
    """The folder of a Llama's configuration, of the usual shape or of the tiny one; its weights are made by the engine."""
    import tiny_models
    import transformers

    folder = parent / ("llama-shape" if is_large else "llama-tiny-shape")
    folder.mkdir(parents=True, exist_ok=True)
    kind, settings = tiny_models.CONFIGURATIONS["llama"]
    changed = {**settings, **(LARGE if is_large else {}), "max_position_embeddings": 131_072}
    config: Any = getattr(transformers, kind)(**changed)
    told = {**config.to_dict(), "architectures": ["LlamaForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(told, indent=1, default=str))
    return folder


def measured(engine: Any, lengths: list[int], tokens: int, rounds: int) -> list[dict[str, object]]:
    """A row for each length: medians of the rounds, and the tokens that came from host."""
    draw = random.Random(0)

    def prompt(length: int) -> list[int]:
        return [draw.randrange(VOCABULARY) for _ in range(length)]

    def asked(ids: list[int]) -> tuple[float, int]:
        start = time.perf_counter()
        answer = engine.generate(input_ids=[ids], sampling_params={"temperature": 0, "max_new_tokens": 1})[0]
        taken = time.perf_counter() - start
        return taken, (answer["meta_info"].get("cached_tokens_details") or {}).get("host", 0)

    rows: list[dict[str, object]] = []
    for length in lengths:
        asked(prompt(length))  # what is compiled at the first call
        computed, loaded, hits = [], [], []
        for _ in range(rounds):
            wanted = prompt(length)
            computed.append(asked(wanted)[0])
            for _ in range(-(-tokens // length)):
                asked(prompt(length))
            seconds, hit = asked(wanted)
            loaded.append(seconds)
            hits.append(hit)
        rows.append(
            {
                "prompt tokens": length,
                "from host": hits,
                "computed ms": round(1e3 * statistics.median(computed), 1),
                "loaded ms": round(1e3 * statistics.median(loaded), 1),
                "ratio": round(statistics.median(computed) / statistics.median(loaded), 2),
                "rounds": rounds,
            }
        )
    return rows


def main() -> None:
    """Start the engine of a spec, measure, write the rows."""
    import sglang

    spec = json.loads(Path(sys.argv[1]).read_text())
    engine = sglang.Engine(**{"skip_tokenizer_init": True, "random_seed": 0, "log_level": "warning", **spec["engine"]})
    try:
        rows = measured(engine, spec["lengths"], spec["tokens"], spec["rounds"])
        Path(spec["result"]).write_text(json.dumps(rows))
    finally:
        engine.shutdown()


if __name__ == "__main__":
    main()
