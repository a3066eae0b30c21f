#!/usr/bin/env bash
# A whole SGLang on a CPU in a folder of its own, with this package in it: bash install.sh FOLDER
# About 2.7 GB and three minutes. What PyPI has no CPU build of (torchvision, sgl-kernel) is in standins/.
# TORCH_INDEX names another index with CPU builds of torch; TORCH_INDEX= takes those of pip's own index.
set -euo pipefail
folder=$(mkdir -p "${1:?usage: install.sh FOLDER}" && cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../../.." && pwd)
[ -x "$folder/bin/python" ] || "${PYTHON:-python3}" -m venv "$folder"
pip=("$folder/bin/python" -m pip install -q --disable-pip-version-check)
if [ ! -e "$folder/.engine" ]; then
    torch_index=${TORCH_INDEX-https://download.pytorch.org/whl/cpu}
    "${pip[@]}" ${torch_index:+--extra-index-url "$torch_index"} torch==2.13.0 numpy
    "${pip[@]}" transformers==5.19.0 safetensors sentencepiece==0.2.1 tiktoken tokenizers openai openai-harmony==0.0.4 \
        "llguidance>=1.7.6,<2" interegular partial_json_parser compressed-tensors==0.18.0 gguf datasets einops scipy pillow \
        fastapi uvicorn uvloop aiohttp requests python-multipart orjson msgspec pydantic pybase64 pyzmq psutil setproctitle \
        "prometheus-client>=0.20" packaging pyyaml regex tqdm dill distro easydict cachetools watchfiles xxhash zstandard IPython jsonschema soundfile
    "${pip[@]}" --no-deps xgrammar==0.2.7 apache-tvm-ffi outlines==0.1.11 outlines_core triton==3.6.0 torchao timm blobfile \
        nvidia-ml-py sglang==0.5.23
    touch "$folder/.engine"
fi
"${pip[@]}" "sortedcontainers>=2.4" "mypy-extensions>=1.0" "setuptools>=77" "mypy>=2.4"
rm -rf "$root/build" # what an earlier build left would be installed, too
UNIFIED_TREE_PURE=1 "${pip[@]}" --no-deps --no-build-isolation --force-reinstall "$root"
