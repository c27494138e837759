# Two commands: `make run` serves dataloader, `make test` tests it. Python 3.11 or newer and make are all they need.

VENV := .venv
BIN := $(VENV)/bin
PYTHONS := python3.13 python3.12 python3.11 python3 python3.14 python
PROCESSES := 3
COVERAGE :=
# What pip has to say about its configuration, indexes and versions matters when it fails, and only then: the user sees
# all of it then, and none of it when all went well.
PIP_LOG := $(VENV)/pip.log
PIP := run_pip() { $(BIN)/python -m pip --disable-pip-version-check --no-input "$$@" >$(PIP_LOG) 2>&1 || \
	{ code=$$?; cat $(PIP_LOG) >&2; echo "pip failed with exit code $$code; its output is above, and in $(PIP_LOG)." >&2; exit $$code; }; }; run_pip
LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-emit-find-links --no-emit-package dataloader --custom-compile-command 'make lock' \
	pyproject.toml --group build

export PIP_ROOT_USER_ACTION := ignore

.PHONY: hostile help run test coverage check lint format docs chaos chaos-short chaos-mutants lock clean
.DELETE_ON_ERROR:

help:
	@echo 'make run     serve the API, the workers and the dashboard at http://127.0.0.1:8081'
	@echo 'make test    the whole test suite, on a real PostgreSQL;  make coverage  the same, and what it did not run'
	@echo 'make check   what must pass before a push: lint, types, tests'
	@echo 'make hostile all that means no good, at full length: requests, rows, reports, sources, overload (about 15 minutes)'
	@echo 'make lint    ruff and mypy only;  make format  lets ruff mend what it can'
	@echo 'make docs    the documentation as a site, in build/site; a link that leads nowhere fails it'
	@echo 'make chaos   faults from a seed against a service under load, for ten minutes: make chaos SEED=1'
	@echo 'make lock    the lock files anew from requirements.txt and pyproject.toml'
	@echo 'make clean   away with everything that make made; jobs in .data stay'

run: $(VENV)/.installed
	@exec $(BIN)/python -m app serve

test: $(VENV)/.installed-dev
	@exec $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal $(COVERAGE) $(TESTS)

# To watch each line takes half as much again, and the watched processes are not those that are shipped.
coverage: COVERAGE := --cov --cov-report=term --cov-fail-under=95
coverage: test

hostile: $(VENV)/.installed-dev
	@DL_HOSTILE=long $(BIN)/python -m pytest --timeout 1800 $(or $(TESTS),tests/hostile)

check: lint test

lint: $(VENV)/.installed-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/.installed-dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

docs: $(VENV)/.installed-dev
	@$(BIN)/python -m sphinx --fail-on-warning --keep-going --nitpicky --quiet --builder html docs build/site
	@echo 'build/site/index.html is the first page'

# A seed is drawn and printed when none is given; given, it plans the same again.
CHAOS = $(BIN)/python -m tests.chaos

chaos: $(VENV)/.installed-dev
	@exec $(CHAOS) run $(SEED:%=--seed %)

chaos-short: $(VENV)/.installed-dev
	@exec $(CHAOS) run $(SEED:%=--seed %) --seconds 120

chaos-mutants: $(VENV)/.installed-dev
	@exec $(CHAOS) mutants

lock: $(VENV)/.installed-dev
	@$(LOCK) --extra embedded --output-file requirements.lock
	@$(LOCK) --extra dev --constraint requirements.lock --output-file requirements-dev.lock

clean:
	rm -rf $(VENV) .chaos dist build docs/_made .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.* htmlcov
	find app workers pipelines tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps tell what is installed; the locks tell what should be. A stamp also depends on the interpreter, so that a
# .venv whose Python has gone is made and filled in one go.
$(VENV)/.installed: requirements.lock pyproject.toml $(BIN)/python
	@echo 'Installing what requirements.lock names…'
	@$(PIP) install --requirement requirements.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed-dev: requirements-dev.lock pyproject.toml $(BIN)/python
	@echo 'Installing what requirements-dev.lock names…'
	@$(PIP) install --requirement requirements-dev.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $(VENV)/.installed $@

# A name on PATH proves nothing (pyenv leaves shims that only fail), so each is asked to do what we need of it.
$(BIN)/python:
	@for python in $(PYTHON) $(PYTHONS); do \
	  if "$$python" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	    echo "Making $(VENV) with $$("$$python" --version)…"; \
	    rm -rf $(VENV); exec "$$python" -m venv $(VENV); \
	  fi; \
	done; \
	echo 'No Python of version 3.11 or newer that can make a virtual environment was found; tried:' >&2; \
	for python in $(PYTHON) $(PYTHONS); do \
	  if "$$python" -c '' >/dev/null 2>&1; then \
	    missing=$$("$$python" -c 'import ensurepip, venv' >/dev/null 2>&1 || echo ', without the venv module'); \
	    echo "  $$python: $$("$$python" --version 2>&1)$$missing" >&2; \
	  fi; \
	done; \
	echo 'Install one (Debian, Ubuntu: apt install python3 python3-venv), or name it: make run PYTHON=/path/to/python3' >&2; \
	exit 1
