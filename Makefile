# Every target sets up what it needs: Python 3.11 or newer and make are enough.
#   make PYTHON=python3.12 test    another interpreter (only when .venv is first made)
#   make test ARGS="-k conceptor"  extra arguments for pytest, the benchmarks or the demo

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

PYTHON ?=
WORKERS ?= 2
ARGS ?=
MINUTES ?= 30
SECONDS ?= 60

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
SOURCES := src tests examples perf

# Modules are compiled when they are first imported, not all of them when they are installed. Where the environment
# forbids to keep what was compiled, every process would do it again, and the tests start hundreds.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup demo test quick soak fuzz docs build reproduction bench lint format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv with the pinned versions

# The build backend comes first and from the same pins, so that nothing is resolved outside constraints.txt.
$(STAMP): pyproject.toml constraints.txt
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  found=; for python in $(or $(PYTHON),python3.11 python3); do \
	    if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found=$$python; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "codecl needs Python 3.11 or newer (tried: $(or $(PYTHON),python3.11 python3); name another with make PYTHON=...)" >&2; \
	    exit 1; \
	  fi; \
	  "$$found" -m venv --clear $(VENV); \
	fi
	@echo "installing into $(VENV) (a few minutes, once)"
	@$(PIP) install -c constraints.txt --no-compile hatchling editables
	@$(PIP) install -c constraints.txt --no-compile --no-build-isolation -e '.[dev]'
	@touch $@

demo: $(STAMP) ## compare fine-tuning, GPM and CODE-CL on the embedded benchmark
	@$(BIN)/codecl compare --methods finetune,gpm,code-cl --jobs 2 --out runs/demo --report $(ARGS)

# One thread for each worker: several workers with a thread for every core each are slower than one.
test: $(STAMP) ## run the tests (WORKERS=2, ARGS=...)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

quick: $(STAMP) ## run the tests that take little time
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m "not slow" $(ARGS)

soak: $(STAMP) ## kill runs and fail their file-system calls, at every one (MINUTES=30)
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.soak --minutes $(MINUTES) $(ARGS)

fuzz: $(STAMP) ## give every reader damaged and hostile files (SECONDS=60)
	@OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(ARGS)

# Warnings are errors, and nothing is fetched. Always anew (-E): pages come from code as well.
docs: $(STAMP) ## build the documentation: docs/_build/html/index.html
	@$(BIN)/python -m sphinx -E -q -W --keep-going -d docs/_build/doctrees docs docs/_build/html

build: $(STAMP) ## build the wheel and the source archive into dist/
	@$(BIN)/python -m build --no-isolation --outdir dist

reproduction: $(STAMP) ## write REPRODUCTION.md, the marked tables of README.md and results/report from results/
	@$(BIN)/python -m codecl.report.reproduction results REPRODUCTION.md README.md
	@$(BIN)/codecl report results --summary --out results/report >/dev/null

bench: $(STAMP) ## measure speed and memory (ARGS=...)
	@$(BIN)/python -m perf $(ARGS)

lint: $(STAMP) ## check style, formatting and types
	@$(BIN)/ruff check $(wildcard $(SOURCES))
	@$(BIN)/ruff format --check $(wildcard $(SOURCES))
	@$(BIN)/mypy

format: $(STAMP) ## fix style and formatting in place
	@$(BIN)/ruff check --fix $(wildcard $(SOURCES))
	@$(BIN)/ruff format $(wildcard $(SOURCES))

clean: ## remove .venv, caches and builds
	rm -rf $(VENV) build dist docs/_build .mypy_cache .pytest_cache .ruff_cache .hypothesis src/*.egg-info
	find $(wildcard $(SOURCES)) -name __pycache__ -type d -prune -exec rm -rf {} +
