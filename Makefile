# All targets work in a fresh clone: they first create an environment in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PARALLEL := -n auto --dist worksteal # one worker per core, up to the limit in conftest.py
# pip compiles no bytecode, because compileall below does it on all cores.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

.PHONY: demo test suite test-fast docs fuzz lint bench extras clean

demo: $(VENV)/demo ## correct a search on data that ships with the package
	$(BIN)/nnnorm demo

test: $(VENV)/dev ## lint, types and all tests, in parallel
	$(MAKE) --no-print-directory -j 2 lint suite

suite: $(VENV)/dev
	$(BIN)/python -m pytest $(PARALLEL)

test-fast: $(VENV)/dev ## all tests except the slow ones: under a minute
	$(BIN)/python -m pytest -q -m "not slow" $(PARALLEL)

docs: $(VENV)/dev ## build the site into build/site; any warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

fuzz: $(VENV)/dev ## run all commands with 5,000 damaged inputs, and save failures in fuzz-failures
	$(BIN)/python -m tests.attack.fuzz

lint: $(VENV)/dev ## run ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/dev ## run the short benchmarks; each prints a table
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/sweep.py --small
	$(BIN)/python benchmarks/exact.py --small
	$(BIN)/python benchmarks/million.py --case small
	$(BIN)/python benchmarks/approximate.py --small --runs 1
	$(BIN)/python benchmarks/automatic_rule.py --tables

# OpenCLIP is skipped, because it installs torchvision, which must match the installed torch.
extras: ## install and import each extra in a fresh environment, and measure its size
	$(PYTHON) benchmarks/extras.py --skip open-clip

clean:
	rm -rf $(VENV) build demo-output

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo: pyproject.toml | $(BIN)/python
	$(PIP) --editable .
	touch $@

# Kubernetes (a dependency of Chroma) and most models of transformers are never imported, so they aren't compiled.
$(VENV)/dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --constraint constraints.txt --editable \
	  ".[audio,datasets,docs,encoders,engines,explore,images,integrations,parquet,plots,ray,remote,sentence-transformers,torch,dev]"
	$(BIN)/python -W ignore -m compileall -q -j 0 -x '/tests?/|/torch/testing/|/kubernetes/|/transformers/models/' $(VENV)/lib || true
	touch $(VENV)/demo $@
