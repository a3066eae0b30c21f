"""Packs what the kit needs on a machine without a network: `python pack.py --out .gpu-kit --python python3.12`.

That is SGLang's Python code from its wheel (tests, images, kernels in CUDA and what is written in Rust are left out), wheels
of what such a machine lacks, and this package, built. The machine has torch, torchvision, triton and transformers. The python
is one of the machine's version; it asks its package index for the wheels, and builds this package.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SGLANG = "sglang==0.5.23"
WHEELS = (
    "fastapi",
    "starlette",
    "pydantic",
    "pydantic-core",
    "annotated-types",
    "typing-inspection",
    "uvicorn",
    "python-multipart",
    "pyzmq",
    "orjson",
    "msgspec",
    "pybase64",
    "setproctitle",
    "partial-json-parser",
    "interegular",
    "cachetools",
    "dill",
    "watchfiles",
    "compressed-tensors==0.18.0",
    "loguru",
    "gguf",
    "openai",
    "httpx2",
    "httpcore2",
    "truststore",
    "jiter",
    "distro",
    "sniffio",
    "opentelemetry-api",
    "soundfile",
    "cffi",
    "zstandard",
    "torchao",
    "openai-harmony==0.0.4",
    "llguidance",
    "xgrammar==0.2.7",
    "apache-tvm-ffi",
    "ipython",
    "ipython-pygments-lexers",
    "traitlets",
    "decorator",
    "matplotlib-inline",
    "prompt-toolkit",
    "wcwidth",
    "jedi",
    "parso",
    "pexpect",
    "ptyprocess",
    "stack-data",
    "executing",
    "asttokens",
    "pure-eval",
)
LEFT_OUT = ("sglang/multimodal_gen/", "sglang/test/")
WHOLE = "sglang/kernels/jit/"
"""SGLang asks at its import whether these sources are there."""
KEPT = (".py", ".json", ".jinja", "METADATA", "entry_points.txt", "WHEEL")
LARGEST_BYTES = 64 << 20


def packed(wheel: Path, target: Path) -> None:
    """Write the part of a wheel of SGLang that is used, as a compressed archive."""
    with zipfile.ZipFile(wheel) as archive, tarfile.open(target, "w:xz", preset=1) as out:
        for name in sorted(archive.namelist()):
            if _is_kept(name):
                data = archive.read(name)
                member = tarfile.TarInfo(name)
                member.size = len(data)
                out.addfile(member, io.BytesIO(data))


def _is_kept(name: str) -> bool:
    """Whether a name in a wheel of SGLang is a file that is used; folders have names of their own there."""
    if name.endswith("/"):
        return False
    return name.startswith(WHOLE) or (not name.startswith(LEFT_OUT) and name.endswith(KEPT))


def main() -> int:
    """Fill the folder; status 1 if it is larger than what can be carried."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / ".gpu-kit")
    parser.add_argument("--python", default=sys.executable, help="of the version that the machine has")
    parser.add_argument("--source", type=Path, default=ROOT, help="the checkout of this package that is built")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    pip = [options.python, "-m", "pip", "--disable-pip-version-check"]
    get = [*pip, "download", "-q", "--no-deps", "--only-binary=:all:"]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*get, "-d", folder, SGLANG], check=True)
        [wheel] = Path(folder).glob("sglang-*.whl")
        packed(wheel, options.out / "sglang.tar.xz")
    subprocess.run([*get, "-d", str(options.out), *WHEELS], check=True)
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", str(options.out), str(options.source)], check=True)
    total = 0
    for path in sorted(options.out.iterdir()):
        total += path.stat().st_size
        print(f"{path.stat().st_size / 1e6:6.1f} MB  {path.name}")
    print(f"{total / 1e6:6.1f} MB")
    return 0 if total < LARGEST_BYTES else 1


if __name__ == "__main__":
    sys.exit(main())
