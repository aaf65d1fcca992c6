.DEFAULT_GOAL := help
.PHONY: help setup test lint rehearsal clean-rehearsal bench soak lock

export PYTHON ?= python3
# Where this is set, every start of Python compiles all that it imports again, and there are hundreds of starts.
unexport PYTHONDONTWRITEBYTECODE
ARGS ?=
# Tests wait more than they compute, so three share two cores well; WORKERS=0 runs them in this process.
WORKERS ?= 3
N ?= 2000
SEED ?= 1
# `make rehearsal KEEP=1` leaves the stack up to look around.
KEEP ?=
PY := .venv/bin/python
COMPILE := .venv/bin/uv pip compile --quiet --upgrade pyproject.toml --universal --fork-strategy fewest --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-annotate --no-emit-package decamp --custom-compile-command "make lock"

help: ## List what make can do here
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Install what the rest needs: Debian packages, a locked .venv, the Pulumi engine
	@tools/set_up.sh

test: setup lint ## Run every check and test; ARGS="tests/unit -k bag" runs some tests
	@$(PY) -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

lint: setup ## Run ruff, mypy --strict, yamllint and ansible-lint; warnings fail
	@.venv/bin/ruff check --quiet .
	@.venv/bin/ruff format --quiet --check . || { .venv/bin/ruff format --check .; exit 1; }
	@$(PY) -m mypy
	@.venv/bin/yamllint --strict .
	@ANSIBLE_INVENTORY=inventories/examples/rented.yml PATH=$(CURDIR)/.venv/bin:$$PATH .venv/bin/ansible-lint --offline -q

rehearsal: setup ## Live through a whole rental on this machine; KEEP=1 leaves it up
	@.venv/bin/decamp rehearsal run $(if $(filter-out 0,$(KEEP)),--keep)

clean-rehearsal: setup ## Remove everything the rehearsal made
	@.venv/bin/decamp rehearsal clean

bench: setup ## Measure the engine against s5cmd, rclone and aws-cli; ARGS="--only small --rounds 3"
	@$(PY) -m bench $(ARGS)

soak: setup ## Try N=2000 random trees with injected faults against the engine, from SEED=1 on
	@$(PY) -m tests.faults.soak --n $(N) --seed $(SEED)

lock: setup ## Renew requirements/*.txt; the node's lock holds for Python 3.10 to 3.13 on x86_64 and aarch64
	@$(COMPILE) --python-version 3.10 --output-file requirements/node.txt
	@for version in 3.10 3.11 3.12 3.13; do for machine in x86_64 aarch64; do \
		.venv/bin/uv pip compile --quiet --only-binary :all: --python-version $$version \
			--python-platform $$machine-manylinux_2_28 requirements/node.txt >/dev/null || exit 1; done; done
	@$(COMPILE) --python-version 3.11 --extra operator --extra dev --constraints requirements/node.txt \
		--output-file requirements/dev.txt
