# Everything runs in .venv, which the first target that needs it makes.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help demo test check format bench bench-gpu clean

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "msft needs Python 3.11 or newer; try make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: .venv/installed  ## SFT and mSFT on a synthetic mixture, two minutes on a CPU
	$(BIN)/msft demo

test: .venv/installed  ## all tests
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

check: .venv/installed  ## format check, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/installed  ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/installed  ## msft against transformers' Trainer on this CPU
	$(BIN)/python bench/cpu_trainer.py

bench-gpu:  ## on a machine with a GPU and torch: the fast path against the plain one
	PYTHONPATH=src:tests/engine $(PYTHON) bench/gpu_check.py

clean:  ## remove what was made
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
