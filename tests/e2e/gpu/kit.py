"""SGLang's scheduler with this cache on a GPU, in one command: `python3 tests/e2e/gpu/kit.py --kit .gpu-kit --out FOLDER`.

`pack.py` makes the kit. Each part is written as it ends to `gpu.json` and `gpu.md` in the folder, which end with a summary:

- outputs: random mixes of four tiny models with no cache, SGLang's cache, this one, and this one with a host tier, with and
  without overlap scheduling and CUDA graphs. Every output must be that of no cache, or differ first where that engine was
  undecided.
- faults: loads and passes that are slow by intent change nothing; without the gates that make one wait for the other, outputs
  do.
- speed: time in the cache and steps a second with 64 and 256 requests running, beside SGLang's cache and HiCache.
- loads: how long a prompt takes that is computed, and the same one from the host tier.

`--device cpu` runs all of it on a CPU, in a smaller size and without graphs, and one more part:

- branches: the part outputs with SGLang's branches for CUDA, in a process that takes the CPU for a GPU (see `rehearsal`).
  `--rehearse` runs the other parts so.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENGINES = HERE.parent / "sglang"
PARTS = ("outputs", "faults", "speed", "loads")
ALL_CACHES = "none,builtin,ours,ours+host"
SIZES: dict[str, dict[str, object]] = {
    "cuda": {"minutes": 9.0, "mixes": 2, "crowds": "64,256", "lengths": "2048,8192", "overlap_caches": ALL_CACHES},
    "cpu": {"minutes": 14.0, "mixes": 1, "crowds": "4", "lengths": "256", "overlap_caches": "none,ours+host"},
}
"""What options are if they are left out."""
SHORT = {"mix": {"waves": 5, "longest_answer": 16}, "pool": 640}
"""On a CPU: changes to all mixes, and the tokens of a pool in the part outputs."""


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where results are written")
    parser.add_argument("--kit", type=Path, help="the folder that pack.py made; without it SGLang is installed")
    parser.add_argument("--source", type=Path, help="a checkout of unified_tree that engines import, where no kit brings it")
    site = Path(tempfile.gettempdir()) / "unified-tree-gpu-site"
    parser.add_argument("--site", type=Path, default=site, help="where the kit is unpacked")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--rehearse", action="store_true", help="a CPU passes for a GPU")
    parser.add_argument("--minutes", type=float, help="no engine starts later, and none runs longer: 9, on a CPU 14")
    parser.add_argument("--parts", help=f"of {','.join(PARTS)} and, on a CPU, branches; all if left out")
    parser.add_argument("--cases", default="", help="of the part outputs, only those whose name begins so")
    parser.add_argument("--caches", default=ALL_CACHES, help="of the part outputs")
    parser.add_argument("--overlap-caches", help="of them with overlap scheduling: all, on a CPU none,ours+host")
    parser.add_argument("--mixes", type=int, help="of each case: 2 of some 40 requests, on a CPU 1 of some 20")
    parser.add_argument("--crowds", help="requests running, in the part speed: 64,256, on a CPU 4")
    parser.add_argument("--lengths", help="of prompts, in the part loads: 2048,8192, on a CPU 256")
    parser.add_argument("--workers", type=int, default=14, help="engines at once, where nothing is timed")
    options = parser.parse_args(arguments)
    is_small = options.rehearse or options.device == "cpu"
    for name, value in SIZES["cpu" if is_small else "cuda"].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    options.mix, options.pool = (SHORT["mix"], SHORT["pool"]) if is_small else ({}, None)
    on_cpu = ("branches",) if options.device == "cpu" else ()
    options.parts = options.parts.split(",") if options.parts else [*PARTS, *on_cpu]
    return options


def unpack(kit: Path, site: Path) -> list[str]:
    """Unpack wheels and SGLang's sources; returns what belongs on the path."""
    import tarfile
    import zipfile

    site.mkdir(parents=True, exist_ok=True)
    site = site.resolve()
    for wheel in sorted(kit.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    for sources in sorted(kit.glob("*.tar.xz")):
        with tarfile.open(sources) as archive:
            if not all(member.isfile() and (site / member.name).resolve().is_relative_to(site) for member in archive):
                raise tarfile.TarError(f"{sources}: it has more than files of its own folder")
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # a Python of before June 2023 has none
            archive.extractall(site)
    return [str(site)]


def main() -> int:
    """Run the parts; status 1 if an output differs, a fault is not seen, an engine fails, or a part is not reached in time."""
    options = options_of()
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    options.kit_mb = options.kit and round(sum(path.stat().st_size for path in options.kit.iterdir()) / 1e6, 1)
    begun = time.monotonic()
    path = [str(ENGINES), *([] if options.kit is None else unpack(options.kit, options.site))]
    sys.path[:0] = path
    os.environ["PYTHONPATH"] = os.pathsep.join([*path, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]).strip(os.pathsep)
    from parts import Bench

    bench = Bench(options, begun)
    try:
        return bench.run(options.parts)
    finally:
        bench.close()


if __name__ == "__main__":
    sys.exit(main())
