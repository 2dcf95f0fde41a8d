# Cordwood. `make demo` and `make test` set everything up by themselves; `make help` lists the rest.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
SEEDS  ?= 1000
WORLD  ?= all
KILLS  ?= 200
SECONDS ?= 120

.DEFAULT_GOAL := help
.PHONY: help setup demo test check check-static format lint types layers quick sim crash stress bench docs lock clean

help: ## List the commands
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: $(VENV)/.ready ## Make the virtual environment in .venv, with every tool

$(VENV)/.ready: requirements/dev.txt pyproject.toml tools/azurite/package-lock.json
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Cordwood needs Python 3.11 or newer; set PYTHON=... to choose one" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@if command -v npm >/dev/null; then npm ci --silent --prefix tools/azurite; \
	else echo "npm is not installed: tests against an Azure server will be skipped"; fi
	@touch $@

demo: setup ## Show the whole pipeline, from writers to a query, in a local directory
	$(BIN)/cordwood demo

# All tests that use Spark share one process, and one JVM (tests/conftest.py). Tests wait a quarter of
# their time, for servers and killed processes: three processes keep two cores busy.
test: setup ## Run the whole test suite
	$(BIN)/python -m pytest -n 3 --dist loadscope $(PYTEST_ARGS)

check-static: format lint types layers ## Format, lint, types, layers

check: check-static quick ## Everything quick: under two minutes

format: setup
	$(BIN)/ruff format --check src tests tools examples

lint: setup
	$(BIN)/ruff check src tests tools examples

types: setup
	$(BIN)/mypy

layers: setup
	$(BIN)/lint-imports

quick: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal -q -m "not slow and not s3 and not azure and not spark"

sim: setup ## Simulate SEEDS worlds of writers, readers and faults (1000); WORLD=cas, chain, volume, …
	$(BIN)/python tools/simulate.py --seeds $(SEEDS) --world $(WORLD)

crash: setup ## Kill writers (KILLS times, 200), producers, users of a volume, Spark queries and jobs: nothing is lost
	$(BIN)/python tools/kill.py --kills $(KILLS)
	$(BIN)/python tools/kill.py --kills $(KILLS) --protocol chain
	$(BIN)/python tools/kill_topic.py
	$(BIN)/python tools/kill_volume.py
	$(BIN)/python tools/kill_bank.py
	$(BIN)/python tools/kill_sqlite.py
	$(BIN)/python tools/play_bank.py
	$(BIN)/python tools/kill_stream.py
	$(BIN)/python tools/write_many.py --kill
	CORDWOOD_STRIDE=1 $(BIN)/python -m pytest -n 2 tests/crash/test_index_power_cut.py

stress: setup ## Put logs under load, with kills, for SECONDS (120), and check every record
	$(BIN)/cordwood log stress --seconds $(SECONDS) --kill
	$(BIN)/cordwood log stress --seconds $(SECONDS) --kill --protocol chain

bench: setup ## Every benchmark, each beside its peer
	$(BIN)/cordwood log bench latency --protocol both
	$(BIN)/cordwood log bench throughput
	$(BIN)/cordwood log bench scan
	$(BIN)/cordwood log bench memory
	$(BIN)/cordwood log bench streams
	$(BIN)/cordwood log bench tail
	$(BIN)/cordwood spark bench read
	$(BIN)/cordwood spark bench read --record 100
	$(BIN)/cordwood pipeline bench scrub
	$(BIN)/cordwood pipeline bench compact
	$(BIN)/cordwood index bench
	$(BIN)/cordwood topic bench
	$(BIN)/cordwood volume bench sqlite

docs: setup ## Run every code block of README and docs
	$(BIN)/python -m pytest -q tests/docs

lock: setup ## Pin the dependencies again
	$(BIN)/pip-compile --quiet --generate-hashes --strip-extras --allow-unsafe --no-annotate \
		--no-header --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
		--extra fast --extra bench --extra spark --extra delta --extra search --extra sqlite --output-file requirements/dev.txt \
		pyproject.toml requirements/dev.in

clean: ## Remove what was made
	rm -rf $(VENV) .cordwood-demo .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*
