#!/usr/bin/env bash
# Serve a model with SGLang and this cache, over a host tier and a file store:
#   bash examples/serve/sglang.sh MODEL [more options of SGLang]
# It installs this checkout and the SGLang that it was tested with into the active Python environment.
# sglang.json has the cache's settings; UNIFIED_TREE_SGLANG_CONFIG names another file. docs/sglang.md explains them.
set -euo pipefail
model=${1:?usage: sglang.sh MODEL [options]}
shift
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

python -m pip install "$root[sglang,replay]"

export UNIFIED_TREE_SGLANG_CONFIG=${UNIFIED_TREE_SGLANG_CONFIG:-$here/sglang.json}
exec python -m sglang.launch_server --model-path "$model" --port 30000 \
    --page-size 64 \
    --radix-cache-backend unified_tree \
    --enable-hierarchical-cache \
    --hicache-storage-backend file \
    --enable-metrics --enable-cache-report \
    "$@"
