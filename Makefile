# Anabranch. Every target does its own set-up: a fresh clone needs Python >= 3.10 and Java >= 17, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup run unit test soak cluster check lint bench reset clean lock format schemas

help:  ## say what can be made
	@awk -F':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: setup  ## the whole system on this machine, with a live screen, until Ctrl-C (ARGS="--for 120s --report FILE")
	@exec $(BIN)/anabranch run --local $(ARGS)

unit: $(VENV)/.installed  ## the quick tests that start no JVM, no server and no process (ARGS="-k NAME" chooses)
	@PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -m "unit and not long" --numprocesses 2 --dist worksteal --quiet $(ARGS)

test: setup lint  ## lint, then all tests but the long ones of soak (ARGS="-k NAME" chooses)
	@PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -m "not soak" --numprocesses 5 --dist loadgroup --no-loadscope-reorder $(ARGS)

soak: setup  ## the long tests, all property tests with five times the examples, then controllers, ZooKeepers and a Kafka under random faults (ARGS="--minutes 30 --seed 7")
	@PYTHONDONTWRITEBYTECODE= $(BIN)/pytest -m "soak or hypothesis" --hypothesis-profile=soak --numprocesses 2 --dist loadgroup --no-loadscope-reorder
	@$(BIN)/python -m tests.harness.chaos --kafka $(ARGS)

cluster: setup  ## the chart on a Kubernetes of its own (built by Go once): install, upgrade, drain, removal
	@$(BIN)/python -m tests.harness.cluster $(ARGS)

check: lint  ## lint, then import all tests
	@$(BIN)/pytest --collect-only -qqq > $(VENV)/collected.log 2>&1 || { tail -60 $(VENV)/collected.log; exit 1; }
	@echo "imports of all tests: clean"

lint: $(VENV)/.installed  ## format, lint, types, import contracts, an audit of the lock files
	@$(BIN)/ruff format --check --quiet . || { echo "not formatted: run make format"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy --no-error-summary --num-workers=2
	@$(BIN)/lint-imports > $(VENV)/contracts.log 2>&1 || { cat $(VENV)/contracts.log; exit 1; }
	@$(BIN)/python -m tests.harness.audit
	@echo "format, lint, types, import contracts and lock files: clean"

bench: setup  ## the benchmarks: tables, JSON and RESULTS.md in benchmarks/
	@$(BIN)/python -m benchmarks $(ARGS)

reset: $(VENV)/.installed  ## forget all state of local runs, after a question (ARGS=--yes): lake, broker data, layouts, checkpoint
	@$(BIN)/anabranch local reset $(ARGS)

setup: $(VENV)/.installed  ## virtual environment, packages and jars; once
	@$(BIN)/anabranch local setup --quiet

format: $(VENV)/.installed  ## format the code
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

schemas: $(VENV)/.installed  ## write the generated files: JSON Schemas, docs/gates.md, docs/metrics.md, docs/pip-*.md
	@$(BIN)/python -m schemas.export && $(BIN)/python -m decisions.autoscale.gates > docs/gates.md
	@$(BIN)/python -m streaming.job.metrics > docs/metrics.md
	@$(BIN)/python -m tests.docs.pip_pages
	@$(BIN)/python -m deploy.generate

lock: $(VENV)/.installed  ## resolve requirements.lock again from pyproject.toml, and the locks of conf/ (set-up, tools of tests) and deploy/ (images)
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --upgrade \
	    --no-header --no-annotate conf/bootstrap.in -o conf/bootstrap.lock
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --upgrade --no-deps \
	    --no-header --no-annotate conf/tools.in -o conf/tools.lock
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --extra dev --extra job --upgrade \
	    --no-header --no-annotate pyproject.toml -o requirements.lock
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --constraint requirements.lock \
	    --no-header --no-annotate pyproject.toml -o deploy/app.lock
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.10 --generate-hashes --constraint requirements.lock \
	    --extra job --no-header --no-annotate pyproject.toml -o deploy/job.lock

clean:  ## remove the virtual environment and all caches; state stays
	rm -rf $(VENV) .cache .mypy_cache .pytest_cache .ruff_cache .import_linter_cache *.egg-info build

$(VENV)/.installed: requirements.lock conf/bootstrap.lock pyproject.toml
	@command -v "$(PYTHON)" >/dev/null || { echo "Python 3.10 or newer is needed, and there is no $(PYTHON): install it, or set PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "Python 3.10 or newer is needed, $(PYTHON) is " + sys.version.split()[0] + ": set PYTHON=/path/to/python3")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "$(PYTHON) has no venv module: install it (on Debian: apt-get install python3-venv), or set PYTHON=/path/to/python3"; exit 1; }
	@$(PYTHON) -m runtime.java_home
	@echo "setting up $(VENV) (once; about a minute) …"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r conf/bootstrap.lock || { echo "uv could not be installed: is this machine online?"; exit 1; }
	@echo "installing the packages of requirements.lock …"
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --compile-bytecode --no-build-isolation --require-hashes -r requirements.lock || { echo "the packages could not be installed: is this machine online? Then run make again"; exit 1; }
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --no-build-isolation --no-deps -e . -e clients/python || { echo "anabranch itself could not be installed: is this machine online? Then run make again"; exit 1; }
	@touch $@
