# Set-up, tests and checks. Needs Python >= 3.11 and make; `make lint`, `make proto` and `make node-client` also need npm.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TOOLS := .tools
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Tests and demonstrations start hundreds of processes, which would each compile the sources anew.
unexport PYTHONDONTWRITEBYTECODE
# Of the suite's two halves, which take about as long as each other, the one; the other is everything else.
SILO_TESTS := tests/datacenter tests/benchmarks/test_silo.py tests/system/test_silos.py tests/system/test_silo_faults.py
ROOMS := protos client server datacenter tests benchmarks examples

# The generator is pinned to the oldest protobuf runtime that pyproject.toml admits (6.31).
GRPC_TOOLS := grpcio-tools==1.76.0
MYPY_PROTOBUF := mypy-protobuf==3.7.0
BUF := @bufbuild/buf@1.75.0

.PHONY: demo demo-private demo-silo test test-silo test-federation test-fast node-client lint types format proto proto-check bench \
  bench-silo bench-smoke clean

demo: $(VENV)/.demo ## train a digit classifier over eight client processes
	$(BIN)/atoll demo

demo-private: $(VENV)/.demo ## the same over 200 participants with differential privacy, beside the same without
	$(BIN)/atoll demo --private

demo-silo: $(VENV)/.demo-silo ## train a language model over two silos of two ranks and two edge clients
	$(BIN)/atoll silo demo

test: $(VENV)/.dev ## the whole test suite, in two halves side by side: much of it is waiting
	$(MAKE) --no-print-directory --jobs=2 test-silo test-federation

test-silo: $(VENV)/.dev ## training in a silo
	set -o pipefail; $(BIN)/pytest $(SILO_TESTS) 2>&1 | sed -u 's/^/silo        /'

test-federation: $(VENV)/.dev ## everything else
	set -o pipefail; $(BIN)/pytest $(addprefix --ignore ,$(SILO_TESTS)) 2>&1 | sed -u 's/^/federation  /'

node-client: $(TOOLS)/conformance/.installed ## what the tests of a client in Node need; without it they are skipped

test-fast: $(VENV)/.dev ## without the tests that start many processes
	$(BIN)/pytest -m "not system"

lint: $(VENV)/.dev $(TOOLS)/node_modules/.bin/buf
	$(BIN)/ruff check $(ROOMS)
	$(BIN)/ruff format --check $(ROOMS)
	$(TOOLS)/node_modules/.bin/buf lint protos

types: $(VENV)/.dev
	$(BIN)/mypy
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(VENV)/.dev
	$(BIN)/ruff check --fix $(ROOMS)
	$(BIN)/ruff format $(ROOMS)

proto: $(TOOLS)/protogen/.installed ## write the generated code anew
	rm -f protos/atoll/wire/v1/*_pb2*
	PATH="$(CURDIR)/$(TOOLS)/protogen/bin:$$PATH" python -m grpc_tools.protoc -I protos --python_out=protos \
	  --grpc_python_out=protos --mypy_out=quiet:protos --mypy_grpc_out=quiet:protos protos/atoll/wire/v1/*.proto
	for file in protos/atoll/wire/v1/*_pb2_grpc.py; do grep -q Servicer $$file || rm $$file $${file}i; done

proto-check: proto ## fail if the checked-in generated code is not what the protos give
	git diff --exit-code -- protos
	test -z "$$(git status --porcelain -- protos)"

bench: $(VENV)/.dev ## every benchmark; results under benchmarks/results
	$(BIN)/python -m benchmarks

bench-silo: $(VENV)/.dev ## benchmarks of silo training; results under benchmarks/results/silo-*.json
	$(BIN)/python -m benchmarks.silo

bench-smoke: $(VENV)/.dev
	$(BIN)/python -m benchmarks --smoke
	$(BIN)/python -m benchmarks.silo --smoke

clean: ## remove everything that make made
	rm -rf $(VENV) $(TOOLS)

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Atoll needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV) (about a minute)"
	$(PIP) install -c constraints.txt -e ".[demo]"
	@touch $@

$(VENV)/.demo-silo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV) with torch (a few minutes)"
	$(PIP) install -c constraints.txt -e ".[server,silo]"
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV) with torch and the development tools (a few minutes)"
	$(PIP) install -c constraints.txt -e ".[dev]"
	@touch $@ $(VENV)/.demo $(VENV)/.demo-private $(VENV)/.demo-silo

$(TOOLS)/protogen/.installed: Makefile
	$(PYTHON) -m venv $(TOOLS)/protogen
	$(TOOLS)/protogen/bin/python -m pip --disable-pip-version-check --quiet install $(GRPC_TOOLS) $(MYPY_PROTOBUF)
	@touch $@

$(TOOLS)/conformance/.installed: tests/conformance/node/package.json tests/conformance/node/package-lock.json
	mkdir -p $(@D)
	cp $^ $(@D)
	npm ci --silent --ignore-scripts --prefix $(@D)
	@touch $@

$(TOOLS)/node_modules/.bin/buf: Makefile
	mkdir -p $(TOOLS)
	npm install --silent --no-save --prefix $(TOOLS) $(BUF)
	@touch $@
