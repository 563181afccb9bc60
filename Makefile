# Perdure: `make run` sees it work, `make test` proves it. Needs Python 3.11 or newer; all else comes into .venv by hash.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input --quiet
CODE := perdure workflows activities providers worker.py examples bench tests docs/reference.py docs/support.py
COMPILE := $(BIN)/pip-compile --quiet --upgrade --generate-hashes --strip-extras --allow-unsafe --no-header \
	--no-emit-index-url --no-emit-trusted-host --no-emit-find-links --annotation-style=line

.DEFAULT_GOAL := help
.PHONY: help install run test test-quick test-slow check format bench smoke bench-history chaos docs record lock clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(VENV)/.runtime  ## watch an agent work, and be killed and go on: KILL=1 make run
	$(BIN)/python examples/incident_desk/run.py $(if $(KILL),--kill)

test: test-quick test-slow  ## all tests, the quick ones first

test-quick: $(VENV)/.dev  ## tests without killed processes and installed wheels
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

test-slow: $(VENV)/.dev  ## tests that kill workers and servers and install the wheel
	$(BIN)/python -m pytest -n 2 --dist loadfile -m slow

check: $(VENV)/.dev  ## lint, format, types, layers, public names, documents
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy $(CODE)
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest -n 2 tests/test_public_api.py tests/test_docs.py tests/test_architecture.py

format: $(VENV)/.dev  ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.dev  ## every figure beside a hand-written loop: JSON=file make bench writes it down
	$(BIN)/python -m bench.table $(if $(JSON),--json $(JSON))

smoke: $(VENV)/.dev  ## try a real model with your key: PROVIDER=openai MODEL=gpt-5-mini make smoke (URL=...)
	@test -n "$(PROVIDER)" -a -n "$(MODEL)" || { echo "say PROVIDER=name MODEL=name, such as PROVIDER=openai MODEL=gpt-5-mini"; exit 2; }
	$(BIN)/python -m bench.smoke $(PROVIDER) $(MODEL) $(if $(URL),--url $(URL))

bench-history: $(VENV)/.dev  ## fail where a turn costs more history than before
	$(BIN)/python bench/history.py --check

chaos: $(VENV)/.dev  ## kill 200 workers, and the server, at random: nothing twice, nothing lost
	CHAOS_KILLS=$(or $(KILLS),200) $(BIN)/python -m pytest -s tests/chaos/test_random_kills.py

docs: $(VENV)/.dev  ## write the API reference and the table of providers anew
	$(BIN)/python docs/reference.py
	PYTHONPATH=. $(BIN)/python docs/support.py

record: $(VENV)/.dev  ## record the golden histories anew; review them with git diff
	$(BIN)/python -m tests.replay.record

lock: $(VENV)/.dev  ## resolve the dependencies anew into both lock files
	$(COMPILE) --extra embedded --extra s3 --extra otel --build-deps-for editable -o requirements.lock pyproject.toml
	$(COMPILE) --all-extras --all-build-deps -c requirements.lock -o requirements-dev.lock pyproject.toml

install: $(VENV)/.dev  ## everything for working on Perdure, into .venv

clean:  ## remove what these targets made
	rm -rf $(VENV) dist build .perdure .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "Perdure needs Python 3.11 or newer; install it or give PYTHON=/path/to/python"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: requirements.lock pyproject.toml | $(VENV)/bin/python
	$(PIP) install --require-hashes -r requirements.lock
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: requirements-dev.lock pyproject.toml | $(VENV)/bin/python
	$(PIP) install --require-hashes -r requirements-dev.lock
	$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@
