# Set-up is automatic: every target makes .venv when it is missing or out of date.
PY := .venv/bin/python

.PHONY: help demo test env lint fmt typecheck test-fast wheel clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

demo: env ## three emulated devices, one trace, three routing policies: the comparison
	@$(PY) -m benchmarks.demo

test: env lint typecheck ## everything that CI runs
	@scripts/fetch-vllm-sources
	@$(PY) -m pytest

env: ## make or update .venv
	@scripts/setup-env

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

wheel: env ## build the wheel into dist/
	@$(PY) -m build --wheel --no-isolation

clean: ## remove everything that was made
	rm -rf .venv .cache build dist out logs *.egg-info vllm_goodput/*.so
