# The one entry point. Every verb installs what it needs; a fresh machine needs only Python 3.11+ and make.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help venv demo test quick check format bench bench-quick bench-spark load chaos chaos-spark damage lock clean

help:  ## say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP)  ## install the locked dependencies into .venv

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Levada needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "$(PYTHON) cannot make a virtual environment. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }

$(STAMP): requirements/dev.txt pyproject.toml | $(BIN)/python
	@echo "installing the locked dependencies into $(VENV) ..."
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

demo: $(STAMP)  ## watch a broker and a pipeline on Spark at work: about a minute once all is installed, longer on a busy machine (KEEP=1 leaves them running)
	@$(BIN)/python examples/demo.py

# What fast paths serve, to run once more without them.
FAST_PATHS := tests/component/api tests/component/broker/coordinator tests/component/client

test: $(STAMP)  ## all tests: unit, component, packaging and sim (5 minutes), without fast paths (1), badinput (1), compat with real clients (9, more the first time), eos (1), spark (9)
	$(BIN)/python -m pytest -n 2 --dist loadgroup tests/unit tests/component tests/packaging tests/sim
	BROKER_SETTINGS=levada.fast.paths=false $(BIN)/python -m pytest -n 2 --dist loadgroup -q $(FAST_PATHS)
	$(BIN)/python -m pytest tests/badinput
	$(BIN)/python -m pytest tests/compat
	$(BIN)/python -m pytest -n 2 tests/eos
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/spark

quick: $(STAMP)  ## what is worth running at each save: under 2 minutes
	SEEDS=40 EXAMPLES=20 $(BIN)/python -m pytest -n 2 --dist loadgroup -q -m "not slow" tests/unit tests/component tests/packaging tests/sim

check: $(STAMP)  ## style, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)  ## rewrite the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)  ## Levada and Apache Kafka side by side: 15 minutes (FULL=1: every row)
	$(BIN)/python -m bench

bench-quick: $(STAMP)  ## the hot path against its last recorded state: under 2 minutes, no JVM (BASE=REV: in turns with a commit, 8)
	$(BIN)/python -m bench quick $(if $(BASE),--against $(BASE))

bench-spark: $(STAMP)  ## Levada's Spark connector and the stock one, on Levada and on Apache Kafka: 15 minutes
	$(BIN)/python -m bench spark

load: $(STAMP)  ## many groups, commits and transactions at once: 3 minutes (SECONDS=10: shorter, not recorded)
	RECORD=1 $(BIN)/python -m pytest -q tests/load

chaos: $(STAMP)  ## exactly once at length: 100,000 messages copied while all are killed, by four kinds of copiers (SEED=2: other kills)
	CHAOS=full $(BIN)/python -m pytest -s -o faulthandler_timeout=1200 tests/eos

chaos-spark: $(STAMP)  ## exactly once on Spark: topic to topic and topic to lake while driver, executors, workers and broker are killed: 15 minutes (SEED=2: other kills)
	CHAOS=full $(BIN)/python -m pytest -s -o faulthandler_timeout=3600 tests/spark/chaos

damage: $(STAMP)  ## 2,000 starts on data directories with damaged files: no damage is silent: 6 minutes (SEED=2: other damage)
	$(BIN)/python -m tests.damage --starts 2000 --seed $(or $(SEED),1)

LOCK := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header $(if $(UPGRADE),--upgrade)
lock: $(STAMP)  ## write requirements/*.txt from pyproject.toml (UPGRADE=1 takes newer versions)
	$(LOCK) pyproject.toml -o requirements/core.txt
	$(LOCK) --extra dev pyproject.toml -o requirements/dev.txt

clean:  ## remove what make made
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
