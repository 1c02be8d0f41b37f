# Everything from a fresh clone: `make demo` and `make test` set up their own environment in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PARALLEL := -n auto --dist worksteal # one worker per core; tests/conftest.py says how many at most
# Byte code is compiled afterwards, on all cores.
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

.PHONY: demo test suite test-fast docs fuzz lint bench extras clean

demo: $(VENV)/demo ## the main job on data that ships with the package
	$(BIN)/nnnorm demo

test: $(VENV)/dev ## everything: lint, types, the whole suite, side by side
	$(MAKE) --no-print-directory -j 2 lint suite

suite: $(VENV)/dev
	$(BIN)/python -m pytest $(PARALLEL)

test-fast: $(VENV)/dev ## all but the slow tests: under a minute
	$(BIN)/python -m pytest -q -m "not slow" $(PARALLEL)

docs: $(VENV)/dev ## the site, into build/site; any warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

fuzz: $(VENV)/dev ## 5,000 damaged inputs for all commands; failures are kept in fuzz-failures
	$(BIN)/python -m tests.attack.fuzz

lint: $(VENV)/dev ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/dev ## the short benchmarks; each prints a table
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/sweep.py --small
	$(BIN)/python benchmarks/exact.py --small
	$(BIN)/python benchmarks/million.py --case small
	$(BIN)/python benchmarks/approximate.py --small --runs 1
	$(BIN)/python benchmarks/automatic_rule.py --tables

# OpenCLIP is left out: it brings torchvision, whose build must be the one made for this torch.
extras: ## each extra in a fresh environment of its own: installs, imports, size
	$(PYTHON) benchmarks/extras.py --skip open-clip

clean:
	rm -rf $(VENV) build demo-output

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/demo: pyproject.toml | $(BIN)/python
	$(PIP) --editable ".[plots]"
	touch $@

# The libraries behind Chroma's client for Kubernetes and most models are never imported.
$(VENV)/dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) --constraint constraints.txt --editable \
	  ".[audio,datasets,docs,encoders,engines,explore,images,integrations,parquet,plots,ray,remote,sentence-transformers,torch,dev]"
	$(BIN)/python -W ignore -m compileall -q -j 0 -x '/tests?/|/torch/testing/|/kubernetes/|/transformers/models/' $(VENV)/lib || true
	touch $(VENV)/demo $@
