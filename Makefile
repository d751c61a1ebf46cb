# Works on a fresh clone with only Python >= 3.11 and make; everything lands in .venv.

SHELL := /bin/sh
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
# May be set on the command line: make test PYTEST_ARGS="-k gate", make demo DEMO_ARGS="--help",
# make kafka-up KAFKA_ARGS="--port 9093".
PYTEST_ARGS ?=
# Processes that tests run in: make test WORKERS=1.
WORKERS ?= auto
# Of the fast tests and the slow ones, both at once: make test HALVES=1 runs one after the other.
HALVES ?= 2
# Two more than there are cores for tests that wait for brokers, disks and each other.
WAITING = $(if $(filter auto,$(WORKERS)),$$(($$(getconf _NPROCESSORS_ONLN) + 2)),$(WORKERS))
# By file, because its tests share expensive fixtures; in the order of tests/conftest.py: the longest start first.
BY_FILE = --dist loadfile --no-loadscope-reorder
DEMO_ARGS ?=
# make bench BENCH_ARGS="--only events".
BENCH_ARGS ?=
# Folder of data sets that are not generated, and further arguments: make bench-papers PAPERS_ARGS="--only gridlock",
# make bench-distributed DISTRIBUTED_ARGS="--only streams".
DATA ?=
PAPERS_ARGS ?=
DISTRIBUTED_ARGS ?=
KAFKA_ARGS ?=
# Tests start hundreds of processes; each would compile all sources again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-fast test-slow test-exhaustive messages reference bench bench-papers bench-distributed lint audit docs lowest format image-check kafka-up kafka-down clean

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.stamp  ## Learn a real data set as a stream, and serve metrics
	$(BIN)/streammoe demo $(DEMO_ARGS)

test: $(VENV)/.stamp-dev  ## Run the test suite: fast tests, and meanwhile those that wait
	@# Once, so that workers do not all compile the same kernels.
	@$(BIN)/streammoe compile
	@$(MAKE) --no-print-directory --jobs=$(HALVES) test-fast test-slow

# 5: PYTEST_ARGS selects no test of this half, which is not a failure.
test-fast: $(VENV)/.stamp-dev
	$(BIN)/pytest -n $(WORKERS) -m "not slow and not exhaustive" $(PYTEST_ARGS) || test $$? -eq 5

# What it prints comes at the end, so that the two do not mingle.
test-slow: $(VENV)/.stamp-dev
	@printed=$$(mktemp); trap 'rm -f "$$printed"' EXIT; \
	$(BIN)/pytest -n $(WAITING) $(BY_FILE) -m "slow and not exhaustive" $(PYTEST_ARGS) >"$$printed" 2>&1; \
	code=$$?; cat "$$printed"; test $$code -eq 0 || test $$code -eq 5

test-exhaustive: test  ## Run also full products, long fuzzing and soak tests, and the table of faults
	$(BIN)/pytest -n $(WAITING) $(BY_FILE) -m exhaustive $(PYTEST_ARGS) || test $$? -eq 5
	$(BIN)/python -m tests.mutations --jobs $(if $(filter auto,$(WORKERS)),0,$(WORKERS))

messages: $(VENV)/.stamp-dev  ## Regenerate tests/messages/approved.md, to be reviewed as prose
	$(BIN)/python -m tests.messages

reference: $(VENV)/.stamp-dev  ## Write again what is derived from other files: docs/reference, comments of settings, alerts for Kubernetes
	$(BIN)/python scripts/reference.py

bench: $(VENV)/.stamp-dev  ## Print the tables of docs/performance.md, in five to ten minutes
	@$(BIN)/python -c "import vowpalwabbit" 2>/dev/null || \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check vowpalwabbit || \
	  echo "no Vowpal Wabbit for this platform; the tables leave it out" >&2
	$(BIN)/python -m benchmarks.performance $(BENCH_ARGS)

bench-papers: $(VENV)/.stamp-dev  ## Print the papers' tables next to baselines; DATA=DIR names the data sets
	$(BIN)/python -m benchmarks.papers $(if $(DATA),--data "$(DATA)") $(PAPERS_ARGS)

bench-distributed: $(VENV)/.stamp-dev  ## Print the tables of merging many workers' models; DATA=DIR names the data sets
	$(BIN)/python -m benchmarks.distributed $(if $(DATA),--data "$(DATA)") $(DISTRIBUTED_ARGS)

lint: $(VENV)/.stamp-dev  ## Check style, types, import rules, and that uv.lock is in step with pyproject.toml
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy tests/unit/estimators/typed_calls.py
	$(BIN)/lint-imports
	@$(BIN)/uv lock --check --offline --quiet || { echo "uv.lock is not in step; run $(BIN)/uv lock" >&2; exit 1; }

audit: $(VENV)/.stamp-dev  ## Look for unsafe code, and for known vulnerabilities of installed packages
	$(BIN)/bandit -q -c pyproject.toml -r streammoe connectors/streammoe_connectors
	$(BIN)/python scripts/audit_dependencies.py

docs: $(VENV)/.stamp-dev  ## Build the site in build/site, without the network, and look for dead links
	$(BIN)/python -m scripts.docs_site

lowest: $(VENV)/.stamp-dev  ## Install the lowest versions that pyproject.toml allows; undone by make clean
	$(BIN)/uv pip install --quiet --python $(BIN)/python --resolution lowest-direct --upgrade -e ".[dev]"

format: $(VENV)/.stamp-dev  ## Fix what ruff can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

image-check: $(VENV)/.stamp-dev  ## Check the Dockerfile and rehearse its steps without an engine
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python scripts/check_image.py

kafka-up: $(VENV)/.stamp-kafka  ## Start a real Kafka on 127.0.0.1:9092, without Docker; needs Java 17 and Maven
	$(BIN)/python -m scripts.kafka_broker up $(KAFKA_ARGS)

kafka-down: $(VENV)/.stamp  ## Stop it; its topics stay in .kafka
	$(BIN)/python -m scripts.kafka_broker down $(KAFKA_ARGS)

clean:  ## Remove what the other targets created
	@! [ -d .kafka ] || ! [ -x $(BIN)/python ] || $(BIN)/python -m scripts.kafka_broker down
	rm -rf .kafka $(VENV) dist build demo-state .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache .cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environments are as new as pyproject.toml, so a changed dependency is installed by the next target.
$(VENV)/.stamp: pyproject.toml
	@set -e; found=; \
	for candidate in $(PYTHON) $(if $(PYTHON),,python3 python3.13 python3.12 python3.11 python3.14 python); do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    found=$$candidate; break; \
	  fi; \
	done; \
	if [ -z "$$found" ]; then \
	  echo "streammoe needs Python 3.11 or newer, but $(if $(PYTHON),$(PYTHON) is not,PATH holds none)." \
	       "Install one, or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; \
	fi; \
	if ! [ -x $(BIN)/python ] || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  "$$found" -m venv --clear $(VENV) || { \
	    echo "$$found cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; \
	  }; \
	fi
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

$(VENV)/.stamp-kafka: $(VENV)/.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[kafka]"
	@touch $@

# It brings the extra kafka along.
$(VENV)/.stamp-dev: $(VENV)/.stamp
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $(VENV)/.stamp-kafka $@
