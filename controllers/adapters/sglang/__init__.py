"""SGLang's radix cache, replaced by this library: `--radix-cache-backend unified_tree`.

Installing `unified-tree[sglang]` registers the backend by an entry point; `backend.UnifiedTreeCache` is what SGLang's scheduler
calls. docs/sglang.md shows how to serve a model with it. Only the modules `plugin`, `weight_calls`, `backend` and `kv_events`
import SGLang.

- `plugin`: registers the backend, and refuses what was not tested.
- `backend`: SGLang's interface over a `UnifiedTree`.
- `request_rows`: the slots of running requests, and how a checkpoint puts them into the tree.
- `request_keys`: keys of the tree for requests.
- `request_misses`: why prompts had to be computed; `miss_metrics` and `miss_log` tell it.
- `fixed_answers`: answers to SGLang that need nothing of the cache.
- `device_pools`: SGLang's slot allocators as pools of the tree's pages.
- `page_numbers`, `page_names`: the tree's names for these pages, on a CPU and on a GPU.
- `running_states`: the recurrent states of running requests.
- `waiting_order`: the order of waiting requests under `--schedule-policy dfs-weight`.
- `kv_events`: the events that a router reads.
- `transfer_metrics`: counts copies between device and host under SGLang's names.
- `kept_store`: the store, over flushes and changes of the weights, of which `weight_calls` tells.
- `store_answers`: what SGLang asks of the store.
- `settings`: the configuration.
- `refusals`: what the backend does not support.
- `model_check`: `unified-tree sglang-check`, which says it of a model before it is served.
"""
