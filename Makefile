# Set-up is automatic: every target makes .venv when it is missing or out of date.
PY := .venv/bin/python

.PHONY: help demo test env peers lint fmt typecheck test-fast train-default wheel clean

# Of train-default. The card in default.json names the DATE that gives the same file again.
PAIRS ?= ../shared/data/agentic
SEED ?= 0
DATE ?= $(shell date -u +%F)
THREADS ?= 2
NOTE ?= data: ShishirPatil/gorilla, BeachWang/DAIL-SQL, OpenBMB/ToolBench (Apache-2.0); princeton-nlp/intercode and \
tree-of-thought-llm, LiveCodeBench/submissions, noahshinn/reflexion, sierra-research/tau-bench, openai/grade-school-math, \
wenhuchen/Program-of-Thoughts, MohammadrezaPourreza/Few-shot-NL2SQL-with-prompting (MIT)
DEFAULT_MODEL := vllm_goodput/predictor/data/default

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

demo: env ## three emulated devices, one trace, three routing policies: the comparison
	@$(PY) -m benchmarks.demo

test: env lint typecheck ## everything that CI runs
	@scripts/fetch-vllm-sources
	@$(PY) -m pytest

env: ## make or update .venv
	@scripts/setup-env

peers: ## make or update .venv-peers: the routers that benchmarks.pool_live compares with
	@scripts/setup-peers

lint: env ## ruff, format check, clang-format check
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check --quiet . || { echo "run: make fmt"; exit 1; }
	@.venv/bin/clang-format --dry-run --Werror vllm_goodput/csrc/*.h vllm_goodput/csrc/*.cpp || { echo "run: make fmt"; exit 1; }

fmt: env ## format Python and C++
	@$(PY) -m ruff check --fix --quiet . || true
	@$(PY) -m ruff format .
	@.venv/bin/clang-format -i vllm_goodput/csrc/*.h vllm_goodput/csrc/*.cpp

typecheck: env ## mypy --strict
	@scripts/typecheck

test-fast: env ## unit and integration tests only, no vLLM engine
	@$(PY) -m pytest tests/unit tests/integration

train-default: env ## train the length model that comes with the package, from PAIRS; report in out/
	@mkdir -p $(dir $(DEFAULT_MODEL)) out
	@$(PY) -m vllm_goodput.cli train --pairs $(PAIRS) --seed $(SEED) --threads $(THREADS) --date "$(DATE)" \
	  --note "$(NOTE)" -o $(DEFAULT_MODEL).npz --card $(DEFAULT_MODEL).json --report out/length-predictor.html

wheel: env ## build the wheel into dist/
	@$(PY) -m build --wheel --no-isolation

clean: ## remove everything that was made
	rm -rf .venv .venv-peers .cache build dist out logs *.egg-info vllm_goodput/*.so
