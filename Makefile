PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
PEERS ?=

.PHONY: replay test deep bench lint clean

replay: $(VENV)/.replay  ## replay a workload through every eviction policy: make replay ARGS="trace.jsonl.gz --model qwen3-32b"
	$(BIN)/unified-tree replay $(ARGS)

test: $(VENV)/.test  ## all tests but the deep ones
	$(BIN)/python -m pytest -n auto

deep: $(VENV)/.test  ## the long random runs
	$(BIN)/python -m pytest -m deep -s

bench: $(VENV)/.test  ## micro-benchmarks; PEERS=DIR measures rival caches in the same run
	$(BIN)/python -m benches --json bench.json $(if $(PEERS),--peers $(PEERS)) $(ARGS)

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pyright

$(VENV)/.base:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "unified-tree needs Python 3.11 or newer; set PYTHON=…"; exit 2; }
	@$(PYTHON) -c 'import ensurepip, venv' || { echo "$(PYTHON) lacks venv; on Debian: apt-get install python3-venv"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.replay: $(VENV)/.base pyproject.toml constraints.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[replay]'
	@touch $@

$(VENV)/.test: $(VENV)/.base pyproject.toml constraints.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[replay,test,lint]'
	@touch $@ $(VENV)/.replay

$(VENV)/.lint: $(VENV)/.test
	@touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
