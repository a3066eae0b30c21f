#!/usr/bin/env bash
# Serve a model with vLLM and this library's host tier and file store behind vLLM's prefix cache:
#   bash examples/serve/vllm.sh MODEL [more options of vLLM]
# It installs this checkout and the vLLM that it was tested with into the active Python environment.
# vllm.json has vLLM's `--kv-transfer-config`; KV_TRANSFER_CONFIG names another file. docs/vllm.md explains the settings.
set -euo pipefail
model=${1:?usage: vllm.sh MODEL [options]}
shift
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)

python -m pip install vllm==0.33.0 "$root[vllm,replay]"

exec vllm serve "$model" \
    --enable-prefix-caching \
    --enable-prompt-tokens-details \
    --kv-transfer-config "$(cat "${KV_TRANSFER_CONFIG:-$here/vllm.json}")" \
    "$@"
