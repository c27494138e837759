# `make run` serves dataloader, `make test` tests it. Both need only make and Python 3.11 or newer.

VENV := .venv
BIN := $(VENV)/bin
PYTHONS := python3.13 python3.12 python3.11 python3 python3.14 python
PROCESSES := 3
COVERAGE :=
# Shows pip's output only when pip fails.
PIP_LOG := $(VENV)/pip.log
PIP := run_pip() { $(BIN)/python -m pip --disable-pip-version-check --no-input "$$@" >$(PIP_LOG) 2>&1 || \
	{ code=$$?; cat $(PIP_LOG) >&2; echo "pip failed with exit code $$code; its output is above, and in $(PIP_LOG)." >&2; exit $$code; }; }; run_pip
LOCK := $(BIN)/uv pip compile --quiet --universal --no-strip-extras --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-emit-find-links --no-emit-package pg-dataloader --custom-compile-command 'make lock' \
	pyproject.toml --group build

# dataloader/ has links to the other folders. Git on some systems writes text files instead.
REQUIRE_LINKS := test -d dataloader/app || { echo 'dataloader/app does not lead to the folder app: this checkout was made' \
	'without symbolic links. Clone it with: git clone -c core.symlinks=true …' >&2; exit 1; }

export PIP_ROOT_USER_ACTION := ignore

.PHONY: engines field generated hostile help run demo test test-full coverage check lint format docs screenshots pictures chaos chaos-short chaos-mutants model rehearsal targets-proof targets-mutants planted-bugs yardstick lock dist clean
.DELETE_ON_ERROR:

help:
	@echo 'make run     serve the API, the workers and the dashboard at http://127.0.0.1:8081'
	@echo 'make demo    a small company at work, with nothing set up; leaves nothing behind'
	@echo 'make test    the tests of every push, on a real PostgreSQL, in a few minutes'
	@echo 'make test-full  all tests: also whole processes, every page in a browser, generated input, overload and benchmark commands'
	@echo 'make coverage  all tests, and the lines that none of them ran'
	@echo 'make check   what must pass before a push: lint, types, tests'
	@echo 'make hostile hostile requests, rows, reports, sources and overload at full length (about 15 minutes)'
	@echo 'make engines the contract and the scenarios of offloads on two versions of Ray and Dask, which it installs (1.4 GB of memory)'
	@echo 'make field   the first hour on each kind of database, account and host: make field PLACES="owner roles"'
	@echo 'make lint    ruff and mypy only;  make format  ruff fixes what it can'
	@echo 'make generated  write schema.sql, docs/openapi.json, the lists of commands and what else is made from the code'
	@echo 'make docs    the documentation as a site, in build/site; fails on a dead link'
	@echo 'make screenshots  pictures of each page by a browser, in test-results'
	@echo 'make pictures  renews docs/images, the moving one too, from the demo in a browser'
	@echo 'make chaos   ten minutes of faults against a service under load, from a seed: make chaos SEED=1'
	@echo 'make model   every state of the model of the protocol, as far as ten minutes on two cores go'
	@echo 'make rehearsal  upgrades and a rollback while jobs run, in four orders, under faults'
	@echo 'make targets-proof  loads into targets that die at each message of the protocol; fewer: make targets-proof LOADS=500'
	@echo 'make planted-bugs  plants former faults again, one at a time: a test must fail for each (some minutes)'
	@echo 'make lock    write the lock files from requirements.txt and pyproject.toml'
	@echo 'make dist    the wheel, the source distribution, and what an image is built from'
	@echo 'make clean   remove everything that make created; jobs in .data stay'

run: $(VENV)/.installed
	@exec $(BIN)/python -m app serve

demo: $(VENV)/.installed
	@exec $(BIN)/python -m app demo $(MINUTES:%=--minutes %)

test: SELECTION := -m 'not full and not engines and not field'
test-full: SELECTION := -m 'not field'
test test-full: $(VENV)/.installed-dev
	@exec $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal $(SELECTION) $(COVERAGE) $(TESTS)

# Coverage takes half as long again and instruments the processes, so it is a target of its own.
coverage: COVERAGE := --cov --cov-report=term --cov-fail-under=95
coverage: test-full

hostile: $(VENV)/.installed-dev
	@DL_HOSTILE=long $(BIN)/python -m pytest --timeout 1800 $(or $(TESTS),tests/hostile)

# The first hour in each place; PLACES names some, or `ci` for those of each push. Its end is the table that docs/field-matrix.md keeps.
field: $(VENV)/.installed-dev
	@rm -rf build/field; code=0; PLACES='$(PLACES)' $(BIN)/python -m pytest -n 2 --dist worksteal tests/field || code=$$?; \
	echo; $(BIN)/python -m tests.field.table; exit $$code

check: lint test

lint: $(VENV)/.installed-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(VENV)/.installed-dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

# All that programs write into the checkout, each file after those that it is made from. Tests compare them.
generated: $(VENV)/.installed-dev
	@$(BIN)/python -m dataloader.app.db.make_schema
	@$(BIN)/python -m dataloader.app.features.doctor
	@$(BIN)/python -m dataloader.app.config.docs
	@$(BIN)/python -m dataloader.app.http > docs/openapi.json.new && mv docs/openapi.json.new docs/openapi.json
	@$(BIN)/python -m docs.commands
	@$(BIN)/python -m docs.make

docs: $(VENV)/.installed-dev
	@$(BIN)/python -m sphinx --fail-on-warning --keep-going --nitpicky --quiet --builder html docs build/site
	@echo 'build/site/index.html is the first page'

# Without SEED, a seed is drawn and printed; the same seed plans the same faults.
CHAOS = $(BIN)/python -m tests.chaos

screenshots: $(VENV)/.installed-dev
	DL_TEST_SCREENSHOTS=test-results/screenshots $(VENV)/bin/python -m pytest -q tests/browser/test_pages.py -k every_page

pictures: $(VENV)/.installed-dev
	@exec $(BIN)/python -m docs.pictures

chaos: $(VENV)/.installed-dev
	@exec $(CHAOS) run $(SEED:%=--seed %)

# Fails if a statement of a job costs the server more than a quarter over what it cost in the last release.
yardstick: $(VENV)/.installed-dev
	@exec $(BIN)/python -m benchmarks yardstick --max 1.25

chaos-short: $(VENV)/.installed-dev
	@exec $(CHAOS) run $(SEED:%=--seed %) --seconds 120

chaos-mutants: $(VENV)/.installed-dev
	@exec $(CHAOS) mutants

# The small configurations are tests; these have more jobs, processes and faults.
model: $(VENV)/.installed-dev
	@exec $(BIN)/python -m tests.model explore --large

# Each order of an upgrade to a stand-in for the next release, with a million jobs in the tables: about 20 minutes.
rehearsal: $(VENV)/.installed-dev
	@exec $(BIN)/python -m tests.rehearsal $(SEED:%=--seed %) $(ORDER:%=--only %) $(PAST_JOBS:%=--past-jobs %)

# Loads into targets that die at each message of the protocol; and planted bugs, of which each must be convicted.
targets-proof: $(VENV)/.installed-dev
	@exec $(BIN)/python -m tests.target_proof run $(SEED:%=--seed %) $(LOADS:%=--loads %)

targets-mutants: $(VENV)/.installed-dev
	@exec $(BIN)/python -m tests.target_proof mutants $(SEED:%=--seed %)

# Real engines, one at a time, each in an environment of its own: the newest version that is supported and the oldest.
# The end is one table: what passed, and seconds of a start, a re-attachment and a stop. A failure does not keep the others from running.
RAY_VERSIONS := 2.60.0 2.52.1
DASK_VERSIONS := 2026.8.0 2025.12.0
ENGINES := $(CURDIR)/build/engines
ENGINE_TABLE := $(ENGINES)/table.md
ENGINE_TESTS = DL_TEST_ENGINE_TABLE=$(ENGINE_TABLE) $(BIN)/python -m pytest -q $(or $(TESTS),tests/workers/offloads)
engines: $(RAY_VERSIONS:%=$(ENGINES)/ray-%) $(DASK_VERSIONS:%=$(ENGINES)/dask-%) $(VENV)/.installed-dev
	@rm -f $(ENGINE_TABLE); export DL_TEST_ENGINE_VERSION; failed=; \
	for DL_TEST_ENGINE_VERSION in $(RAY_VERSIONS); do \
	  echo; echo "Ray $$DL_TEST_ENGINE_VERSION"; \
	  DL_TEST_RAY=$(ENGINES)/ray-$$DL_TEST_ENGINE_VERSION $(ENGINE_TESTS) -k ray || failed="$$failed Ray $$DL_TEST_ENGINE_VERSION,"; \
	done; \
	for DL_TEST_ENGINE_VERSION in $(DASK_VERSIONS); do \
	  echo; echo "Dask $$DL_TEST_ENGINE_VERSION"; folder=$(ENGINES)/dask-$$DL_TEST_ENGINE_VERSION; \
	  DL_TEST_DASK=$$folder PYTHONPATH=$$(echo $$folder/lib/python3*/site-packages) $(ENGINE_TESTS) -k dask || \
	    failed="$$failed Dask $$DL_TEST_ENGINE_VERSION,"; \
	done; \
	echo; echo 'Child processes'; DL_TEST_ENGINE_VERSION=$$($(BIN)/python -V | cut -d' ' -f2); $(ENGINE_TESTS) -k process || failed="$$failed child processes,"; \
	echo; echo 'Real engines on this machine:'; cat $(ENGINE_TABLE); \
	echo 'Kubernetes has no row: it is tested against a fake API server, in make test.'; \
	test -z "$$failed" || { echo "failed:$${failed%,}"; exit 1; }

$(ENGINES)/ray-%:
	@echo 'Installing Ray $*…'
	@python3 -m venv $@ && $@/bin/pip install -q 'ray[default]==$*' || { rm -rf $@; exit 1; }

$(ENGINES)/dask-%:
	@echo 'Installing Dask $*…'
	@python3 -m venv $@ && $@/bin/pip install -q distributed==$* || { rm -rf $@; exit 1; }

# Faults that once were in the product, planted again one at a time: a test must fail for each.
planted-bugs: $(VENV)/.installed-dev
	@exec $(BIN)/python -m tests.planted_bugs

lock: $(VENV)/.installed-dev
	@$(LOCK) --extra embedded --output-file requirements.lock
	@$(LOCK) --extra dev --constraint requirements.lock --output-file requirements-dev.lock
	@$(BIN)/python -m docs.sbom

# The wheel, the source distribution, and what a container image is built from: docker build - < dist/…-container.tar.gz
dist: $(VENV)/.installed-dev
	@$(BIN)/python -m docs.dist

clean:
	rm -rf $(VENV) .chaos dist build docs/_made .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.* htmlcov
	find app dataloader workers pipelines tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamps depend on the lock files and on the interpreter: a .venv whose Python is gone is built and filled again.
$(VENV)/.installed: requirements.lock pyproject.toml $(BIN)/python
	@echo 'Installing requirements.lock: this takes a minute or two, once…'
	@$(PIP) install --requirement requirements.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.installed-dev: requirements-dev.lock pyproject.toml $(BIN)/python
	@echo 'Installing requirements-dev.lock: this takes a minute or two, once…'
	@$(PIP) install --requirement requirements-dev.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $(VENV)/.installed $@

# A name on PATH may be a shim that only fails (pyenv), so each candidate must import what we need.
$(BIN)/python:
	@$(REQUIRE_LINKS)
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
