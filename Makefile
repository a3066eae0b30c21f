PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip
comma := ,
QUIET := -q --disable-pip-version-check
# What the wheel is made of. All targets share it until one of these changes.
SOURCES := pyproject.toml setup.py $(shell find unified_tree components controllers -type f \( -name '*.py' -o -name '*.pyi' -o -name '*.json' -o -name '*.[ch]' -o -path '*/page/*' \) -not -path '*/__pycache__/*')
# The wheel with these extras, also over an earlier one of the same version.
INSTALL = $(PIP) install $(QUIET) --force-reinstall --no-deps $(VENV)/wheels/*.whl && \
    $(PIP) install $(QUIET) -c constraints.txt "$$(echo $(VENV)/wheels/*.whl)[$(1)]"
# Without a compiler nothing is compiled on purpose, and no import warns of it.
export UNIFIED_TREE_PURE ?= $(if $(shell command -v $(firstword $(CC))),,1)
# Exits with 0 where C modules can be compiled, as far as Python goes.
HAS_HEADERS := 'import os, sys, sysconfig; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))'
IS_COMPILED = $(BIN)/python -P -c 'import unified_tree, sys; sys.exit(not unified_tree.is_compiled)'
# Half of the simulation's lives and of the tests marked `halved` run interpreted, and the other half compiled, where there are both.
LIVES := tests/sim/test_simulation.py::test_lives
# What compiling can change: the tree with its policies, the copies to and from host and the page allocator, under all that drives them, ranks, what a scheduler does of a store, and the C modules.
ROOMS := tree declare memory policies state lookup misses locks inserts transfers eviction checks native \
    cache counters weights pages tiers host transfer_engines storage_tier
CORE_TESTS := tests/model tests/sim tests/regressions tests/conformance/test_policies.py $(ROOMS:%=tests/unit/%) \
    tests/unit/pools/test_page_pair.py tests/unit/pools/test_row_copy.py \
    tests/unit/storage/test_file_buckets.py tests/unit/storage/test_file_storage.py \
    tests/unit/workbench/runs/test_replay_rows.py tests/unit/workbench/runs/test_packed_rows.py \
    tests/conformance/test_consensus.py tests/unit/ranks/test_message.py tests/unit/ranks/test_divergence.py \
    tests/unit/ranks/test_waiting.py
# A file is one worker's, which starts its servers once; `tests/conftest.py` puts the longest first.
BY_FILE := --dist loadfile --no-loadscope-reorder
# More than cores, for many tests wait for servers.
WORKERS ?= $(shell expr 3 \* $$(getconf _NPROCESSORS_ONLN) / 2)
ARGS ?=

.PHONY: replay test deep bench bench-replay bench-transfers bench-storage engines engines-e2e gpu-rehearsal sglang-contract vllm-contract lint docs clean

replay: $(VENV)/.replay  ## replay a workload under recency and the default order: make replay ARGS="trace.jsonl.gz --model qwen3-32b"
	$(BIN)/unified-tree replay $(ARGS)

test: export PYTHONDONTWRITEBYTECODE :=  # each worker, and each server that it starts, would compile all modules again
test: $(VENV)/.test  ## all tests but the deep ones; those of the core once more on the compiled modules, if there are any
	if $(IS_COMPILED); then \
	    HALF=1 $(BIN)/python -m pytest -n $(WORKERS) $(BY_FILE) --deselect '$(LIVES)[1]' && \
	    HALF=2 $(BIN)/pytest -n auto $(BY_FILE) $(CORE_TESTS) --deselect '$(LIVES)[3]'; \
	elif test -z "$$UNIFIED_TREE_PURE" && $(BIN)/python -c $(HAS_HEADERS); then \
	    echo "the core was not compiled, although there is a compiler: pip install -v . says why"; exit 1; \
	else $(BIN)/python -m pytest -n $(WORKERS) $(BY_FILE); fi

deep: $(VENV)/.test  ## the long random runs
	$(BIN)/python -m pytest -m deep -s

bench: $(VENV)/.test  ## the one table, into benches/results; ENGINE_PYTHON=… measures SGLang in the same run, LAB=1 renews the lab's table
	PYTHONSAFEPATH=1 $(BIN)/python -c 'import sys; sys.path.append("."); from benches.__main__ import main; sys.exit(main())' \
	    $(if $(ENGINE_PYTHON),--engine $(ENGINE_PYTHON)) $(if $(LAB),--lab) $(ARGS)

bench-replay: $(VENV)/.test  ## the replay beside kvcache-simulator, on its own question: ARGS=conversation_trace.jsonl.gz
	PYTHONSAFEPATH=1 $(BIN)/python -c 'import sys; sys.path.append("."); from benches.simulator_peer import main; sys.exit(main())' $(ARGS)

bench-transfers: $(VENV)/.test  ## bandwidth between device and host pools, against contiguous copies
	PYTHONSAFEPATH=1 $(BIN)/python -c 'import sys; sys.path.append("."); from benches.transfers import main; sys.exit(main())' $(ARGS)

bench-storage: $(VENV)/.test  ## the file engine beside raw reads and writes
	PYTHONSAFEPATH=1 $(BIN)/python -c 'import sys; sys.path.append("."); from benches.storage import main; sys.exit(main())' $(ARGS)

engines: $(VENV)/.test  ## the clients of storage engines that are not in `test`, whose tests run then
	$(call INSTALL,lmcache$(comma)mooncake)
	$(PIP) install $(QUIET) --no-deps lmcache==0.5.6

engines-e2e:  ## random mixes of requests through SGLang on a CPU, in a folder of its own; ENGINE_PYTHON=… takes an installed one
	$(if $(ENGINE_PYTHON),,bash tests/e2e/sglang/install.sh .engines/sglang)
	$(or $(ENGINE_PYTHON),.engines/sglang/bin/python) -W ignore tests/e2e/sglang/run_mixes.py \
	    --caches none,builtin,ours,ours+host,ours+files,ours+restart $(if $(ENGINE_PYTHON),--source .) $(ARGS)

gpu-rehearsal:  ## packs the kit for a GPU, then tries it on a CPU as on a bare machine: PACKER=a Python 3.12 with pip, BARE=one with what the machine has
	$(if $(and $(PACKER),$(BARE)),,$(error give PACKER and BARE: Pythons 3.12, one with pip, one with what the machine has))
	rm -rf out/gpu out/gpu-site .gpu-kit
	$(PACKER) tests/e2e/gpu/pack.py --out .gpu-kit
	mkdir -p out/gpu
	env -i PATH=/usr/bin:/bin HOME=$(CURDIR)/out/gpu $(BARE) -W ignore tests/e2e/gpu/kit.py --kit .gpu-kit --site out/gpu-site \
	    --device cpu --out out/gpu $(ARGS)

sglang-contract: $(VENV)/.base  ## what the SGLang backend relies on, against the newest SGLang; SGLANG=… takes a wheel or a folder
	$(BIN)/python tests/e2e/sglang/contract.py $(or $(SGLANG),--newest)

vllm-contract: $(VENV)/.base  ## what the vLLM connector relies on, against the newest vLLM; VLLM=… takes a wheel or a folder
	$(BIN)/python tests/e2e/vllm/vllm_contract.py $(or $(VLLM),--newest)

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright

docs: $(VENV)/.test  ## the pages of docs/ as a site in build/site; a broken link or name ends it
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

$(VENV)/.base:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "unified-tree needs Python 3.11 or newer; set PYTHON=…"; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "$(PYTHON) lacks venv; on Debian: apt-get install python3-venv"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.wheel: $(VENV)/.base $(SOURCES)
	rm -rf build $(VENV)/wheels
	$(PIP) wheel $(QUIET) --no-deps -w $(VENV)/wheels .
	@touch $@

$(VENV)/.replay: $(VENV)/.wheel constraints.txt
	$(call INSTALL,replay)
	@touch $@

$(VENV)/.test: $(VENV)/.wheel constraints.txt
	$(call INSTALL,replay$(comma)test$(comma)lint$(comma)docs)
	@touch $@ $(VENV)/.replay

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
