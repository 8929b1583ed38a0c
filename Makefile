# The targets that people and scripts use. Every step leaves a stamp, so a second run is instant.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:

PYTHON ?= /usr/bin/python3
VENV := .venv
# Each directory has a distribution of its own; `.` is the runtime.
DISTRIBUTIONS := . $(patsubst %/pyproject.toml,%,$(wildcard client/pyproject.toml server/pyproject.toml plugins/*/pyproject.toml))
BIN := src/sandkasten_runtime/_bin
# One pip at a time in one environment, also under -j.
PIP := flock $(VENV) $(VENV)/bin/python -m pip --disable-pip-version-check --quiet --no-input
RUNNER_SOURCES := $(shell find runner \( -name target -o -name build \) -prune -o -type f \( -name '*.rs' -o -name '*.toml' -o -name '*.lock' -o -name '*.sh' \) -print 2>/dev/null)
# Set on make's command line, and read by the scripts that build images.
export BASE OFFLINE
# Settings of the host must not leak into the tests.
unexport PYTHONPATH PYTHONHOME PYTHONSTARTUP VIRTUAL_ENV
# The tests start hundreds of programs; without bytecode each would compile all its imports again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup dev demo demo-agents dashboard check test test-long test-cluster test-cluster-short test-dagger bench fuzz advisories lint fmt docs wheel install uninstall image images lock clean packages packages-check packages-test packages-long packages-fuzz packages-bench lint-python lint-rust ready debians

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---- set-up ------------------------------------------------------------------------------------

setup: $(VENV)/.server $(VENV)/.command $(BIN)/sandkasten-runner  ## install what is needed to run: packages, .venv, the runner

dev: setup $(VENV)/.dev  ## setup, and what tests and linters need

packages:
	@scripts/apt_packages.sh setup

# Two of these at once would wait for each other's lock on apt; in a row they cost milliseconds.
packages-check: | packages
	@scripts/apt_packages.sh check

packages-test: | packages
	@scripts/apt_packages.sh test

packages-long: | packages-test
	@scripts/apt_packages.sh long

packages-fuzz: | packages
	@scripts/apt_packages.sh fuzz

packages-bench: | packages
	@scripts/apt_packages.sh bench

$(VENV)/.made: | packages
	@echo "making $(VENV) with $(PYTHON)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; $(PYTHON) is " + sys.version.split()[0])'
	@rm -rf $(VENV)
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.server: requirements/server.txt requirements/docker.txt requirements/agents.txt requirements/jwt.txt \
		requirements/signatures.txt requirements/mcp.txt \
		requirements/wheels.txt $(DISTRIBUTIONS:%=%/pyproject.toml) scripts/wheel_hook.py $(VENV)/.made
	@echo "installing the locked requirements and sandkasten itself"
	@$(PIP) install --require-hashes -r requirements/server.txt -r requirements/docker.txt \
		-r requirements/agents.txt -r requirements/jwt.txt -r requirements/signatures.txt -r requirements/mcp.txt \
		-r requirements/wheels.txt
	@$(PIP) --quiet uninstall --yes sandkasten  # what older checkouts called it
	@$(PIP) install --no-deps --no-build-isolation --no-index $(addprefix --editable ,$(DISTRIBUTIONS:%=./%))
	@touch $@

$(VENV)/.dev: requirements/dev.txt contract/pyproject.toml $(VENV)/.server
	@echo "installing the development requirements"
	@# Most of their modules are never imported; those that are get compiled then.
	@$(PIP) install --no-compile --require-hashes -r requirements/dev.txt
	@$(PIP) install --no-deps --no-build-isolation --no-index --editable contract
	@touch $@

$(VENV)/.bench: requirements/bench.txt contract/pyproject.toml $(VENV)/.server
	@$(PIP) install --require-hashes -r requirements/bench.txt
	@$(PIP) install --no-deps --no-build-isolation --no-index --editable contract
	@touch $@

$(VENV)/.docs: requirements/docs.txt $(VENV)/.made
	@$(PIP) install --no-compile --require-hashes -r requirements/docs.txt
	@touch $@

# Pip has put a script there, or the program as it was then.
$(VENV)/.command: $(VENV)/.server $(BIN)/sandkasten
	@install -m 0755 $(BIN)/sandkasten $(VENV)/bin/.sandkasten.new
	@mv -f $(VENV)/bin/.sandkasten.new $(VENV)/bin/sandkasten
	@touch $@

$(BIN)/sandkasten-runner $(BIN)/sandkasten-launch $(BIN)/sandkasten-unpack $(BIN)/sandkasten-egress $(BIN)/sandkasten-gate $(BIN)/sandkasten &: $(RUNNER_SOURCES) | packages
	@echo "building the runner"
	@CARGO_TARGET_DIR=$(CURDIR)/build/runner runner/build.sh
	@touch $(BIN)/sandkasten-runner $(BIN)/sandkasten-launch $(BIN)/sandkasten-unpack $(BIN)/sandkasten-egress $(BIN)/sandkasten-gate $(BIN)/sandkasten

# ---- use ---------------------------------------------------------------------------------------

demo: setup  ## show the main features step by step
	@scripts/demo.sh

demo-agents: setup  ## example agents and a workflow with a scripted model, offline
	@scripts/demo-agents.sh

check: dev packages-check  ## lint, types and quick tests that need no container engine: 3 minutes
	@scripts/test.sh check

test:  ## everything, on every backend: 12 minutes; or the tests of one plugin (PLUGIN=NAME)
	@$(MAKE) --no-print-directory --jobs=4 ready
	@scripts/test.sh $(if $(PLUGIN),plugin $(PLUGIN),all)

test-long:  ## everything, on every backend, in full size
	@$(MAKE) --no-print-directory --jobs=4 ready packages-long
	@scripts/dagger_build.sh
	@TEST_SANDKASTEN_LONG=1 TEST_SANDKASTEN_DAGGER=1 scripts/test.sh all

test-cluster: dev packages-test  ## both suites and tests/cluster on a real Kubernetes of two nodes (20 minutes more when its programs are compiled)
	@scripts/cluster_build.sh
	@scripts/test.sh cluster

test-cluster-short: dev packages-test  ## of test-cluster both suites, and two replicas
	@scripts/cluster_build.sh
	@scripts/test.sh cluster-short

test-dagger: dev packages-test  ## plugins/dagger/tests on a real Dagger engine (15 minutes more when it is compiled; part of test-long)
	@scripts/dagger_build.sh
	@scripts/test.sh dagger

# Pip waits for the network, cargo for its last crate, a bootstrap for dpkg: run all of them at once.
ready: dev $(VENV)/.docs packages-test debians

# The part of tests/prepare.py that needs only Python; the rest follows when all is installed.
debians: | packages-test
	@PYTHONPATH=src:client/src:contract/src:. $(PYTHON) -m tests.prepare debians

bench: setup packages-bench $(VENV)/.bench  ## compare with peers and write docs/benchmarks: 10 minutes (ARGS="--quick --check")
	@$(VENV)/bin/python -m benchmarks.run $(ARGS)

fuzz: packages-fuzz  ## fuzz the parsers of the runner, SECONDS=60 for each, or TARGET=NAME
	@scripts/fuzz.sh "$(or $(SECONDS),60)" $(TARGET)

lint: lint-python lint-rust  ## ruff, mypy, rustfmt, clippy

lint-python: dev
	@scripts/lint.sh python

lint-rust: dev packages-check
	@scripts/lint.sh rust

fmt: dev packages-check  ## format all code
	@$(VENV)/bin/ruff check --quiet --fix --exit-zero .
	@$(VENV)/bin/ruff format --quiet .
	@scripts/cargo.sh fmt

dashboard:  ## build the files of the dashboard, which are in the repository (needs npm)
	@scripts/dashboard.sh

docs: $(VENV)/.docs  ## the documentation as a site in build/site; fails on a broken link
	@scripts/docs.sh

wheel: dev  ## build dist/*.whl: the runtime with the runner in it, and every other part
	@$(VENV)/bin/python scripts/distributions.py wheels dist

install: setup  ## install into PREFIX (default /usr/local), with a unit for systemd
	@scripts/install.sh install

uninstall:  ## remove what make install put into PREFIX; keeps settings and data
	@scripts/install.sh uninstall

image: setup  ## build the daemon as sandkasten:<version> in the engine of DOCKER_HOST (BASE=…)
	@scripts/image.sh

images:  ## build sandbox-runtime:base, :python and :node there (BASE=…, OFFLINE=1)
	@scripts/images.sh

lock:  ## compile all locks again and print what changed (ARGS=--upgrade)
	@scripts/lock.sh $(ARGS)

advisories: dev  ## name locked packages that databases of advisories name (DB="DIRECTORY...")
	@$(VENV)/bin/python scripts/advisories.py $(DB)

clean:  ## remove everything that was built
	@rm -rf $(VENV) build dist $(BIN) runner/target \
		sdks/typescript/dist sdks/typescript/dist-tests sdks/typescript/node_modules \
		examples/typescript/node_modules dashboard/node_modules
	@find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
