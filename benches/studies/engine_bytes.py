"""`python -m benches.studies.engine_bytes --sglang PYTHON --vllm PYTHON`: the bytes that engines allocate, and ours.

Question: how many bytes of cache does a token, or a state, take in SGLang and in vLLM, by their own code on a CPU, and do
compositions state the same? `--page docs/lab/engine_bytes.md` writes the table there. Each PYTHON has the engine installed, or
finds it by PYTHONPATH; an engine that is left out has no column. Silent on the pages' alignment in kernels of a GPU, on memory
around the cache, and on speculative decoding.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from benches.studies.engine_files import BESIDES, FAMILIES, file_of
from unified_tree.components import Composition, from_hf_config
from unified_tree.components.equal_pages import equal_pages

Bytes: TypeAlias = Mapping[str, float]
VLLM = "vLLM 0.33"
START, END = "<!-- python -m benches.studies.engine_bytes -->", "<!-- end -->"
HERE = Path(__file__).parent
PAGES_START = "<!-- python -m benches.studies.engine_bytes: pages -->"
ASIDE = ("carry", "block", "page", "unaligned")
"""Figures of an engine that are no bytes of a token or a state."""
SHOWN = ("full", "index", "window", "chunk", "state")
WHY = {
    ("MiniCPM 3", "vLLM"): "keys and values of all heads, not latents",
    ("DeepSeek V4", "vLLM"): "the same with each page rounded up to 576",
    ("MiMo V2", "vLLM"): "one past token less in the window",
}
"""The known reasons of differences, which the comparison does not find by itself."""


def ours(model: Composition) -> dict[str, float]:
    """Bytes a token or a state by kind, as the scripts of the engines say them."""
    found: dict[str, float] = {}
    for component in model.components:
        if component.format is None or component.name in ("tokens", "overlap"):
            continue
        size = sum(part.row_bytes for part in component.format.parts) * len(component.format.layer_ids)
        window = component.coverage.window_tokens
        kind = "full"
        if component.coverage.is_exact:
            kind = "state"
        elif component.name.startswith("chunked"):
            kind = "chunk"
        elif window is not None:
            kind = f"window {window}"
        elif component.name.startswith("indexer"):
            kind = "index"
        found[kind] = found.get(kind, 0) + size / component.tokens_per_slot
    return found


def read(name: str, file: Mapping[str, Any], **options: Any) -> dict[str, float]:
    if name == "DeepSeek V4":
        options["kv_dtype"] = "fp8_ds_mla"
    return ours(from_hf_config(file, **options))


def told(figures: Bytes) -> str:
    """`full 8,192 · window (127) 4,096`."""
    parts = []
    for kind, size in sorted(figures.items(), key=lambda each: SHOWN.index(each[0].split()[0])):
        name, _, tokens = kind.partition(" ")
        parts.append(f"{name}{f' ({tokens})' if tokens else ''} {size:,.10g}")
    return " · ".join(parts)


def verdict(name: str, engine: str, file: Mapping[str, Any], theirs: Mapping[str, Any]) -> str:
    """How an engine's figures relate to ours, in words."""
    if "error" in theirs:
        is_absent = "no class of its own" in theirs["error"]
        return "-" if is_absent else "could not be asked on a CPU"
    figures = {kind: size for kind, size in theirs.items() if size and kind not in ASIDE}
    mine = read(name, file)
    if alike(figures, mine):
        return "the same"
    halved = read(name, file, state_dtype="bfloat16")
    if alike(figures, halved):
        return f"states in the model's dtype: {told(figures)}"
    together = sum(size for kind, size in mine.items() if kind != "state")
    if {*figures} <= {"full", "state"} and figures.get("full") == together and figures.get("state") == mine.get("state"):
        if "index" in mine and not any(kind.startswith(("window", "chunk")) for kind in mine):
            return "the same, index keys in one sum"
        return f"windows and chunks as full attention: {told(figures)}"
    return f"{WHY.get((name, engine), 'DIFFERS')}: {told(figures)}"


def alike(figures: Bytes, mine: Bytes) -> bool:
    """Equal by kind; a window whose tokens the engine's code does not say is compared by bytes."""
    bare = any(kind == "window" for kind in figures)
    named = {kind.split()[0] if bare else kind: size for kind, size in mine.items()}
    return dict(figures) == named


def asked(python: str, script: str, files: Mapping[str, Any]) -> dict[str, Any]:
    """The bytes that an engine's own code gives, in a process of its Python."""
    with tempfile.TemporaryDirectory() as folder:
        given, out = Path(folder, "files.json"), Path(folder, "out.json")
        given.write_text(json.dumps({name: {**file, "besides": BESIDES.get(name, {})} for name, file in files.items()}))
        environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "TRITON_INTERPRET": "1"}
        command = [python, str(HERE / script), str(given), str(out)]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found: dict[str, Any] = json.loads(out.read_text())
        return found


def table(files: Mapping[str, Any], engines: Mapping[str, Mapping[str, Any]]) -> str:
    lines = [f"| family | here, bytes a token (and a state) | {' | '.join(engines)} |", "|---" * (2 + len(engines)) + "|"]
    for name, file in files.items():
        cells = [verdict(name, engine.split()[0], file, found[name]) for engine, found in engines.items()]
        lines.append(f"| {name} | {told(read(name, file))} | {' | '.join(cells)} |")
    return "\n".join(lines)


def pages_table(files: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]]) -> str:
    """What vLLM makes of attention and states, beside `equal_pages` of the dtype in which it keeps the states."""
    lines = [
        "| family | tokens of a block: here | vLLM 0.33 | bytes of a layer's page: here | vLLM 0.33 | padding of a state |",
        "|---" * 6 + "|",
    ]
    for name, theirs in found.items():
        if "block" not in theirs:
            continue
        models = [from_hf_config(files[name], state_dtype=dtype) for dtype in (None, "bfloat16")]
        mine = [equal_pages(model) for model in models if ours(model).get("state") == theirs["state"]]
        assert mine, f"{name}: the states differ"
        pages = mine[0]
        assert pages is not None
        sizes = (f"{pages.block_tokens:,}", f"{theirs['block']:,}", f"{pages.page_bytes:,}", f"{theirs['page']:,}")
        lines.append(f"| {name} | {' | '.join(sizes)} | {pages.padding_share:.1%} |")
    return "\n".join(lines)


def write(page: Path, start: str, text: str) -> None:
    """The table between the marks of a page."""
    before, _, rest = page.read_text().partition(start)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{start}\n\n{text}\n\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sglang", metavar="PYTHON")
    parser.add_argument("--vllm", metavar="PYTHON")
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    files = {name: file_of(name) for name in FAMILIES}
    engines = {}
    for title, python, script in (
        ("SGLang 0.5.23", given.sglang, "sglang_bytes.py"),
        (VLLM, given.vllm, "vllm_bytes.py"),
    ):
        if python:
            engines[title] = asked(python, script, files)
    text = table(files, engines)
    print(text)
    pages = "" if VLLM not in engines else pages_table(files, engines[VLLM])
    print(pages)
    if given.page is not None:
        write(given.page, START, text)
        if pages:
            write(given.page, PAGES_START, pages)


if __name__ == "__main__":
    main()
