# Set-up, tests and checks. Needs Python >= 3.11 and make; `make lint`, `make proto`, `make node-client` and `make oidc-provider` also need npm.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
# Pinned versions of all packages; `make lock` writes the file.
CONSTRAINTS ?= constraints.txt
# Packages that `make test-newest` keeps at the version in constraints.txt: one name, or several as 'torch|numpy'.
KEEP ?=
BIN := $(VENV)/bin
TOOLS := .tools
TOOL := $(TOOLS)/python/bin
# A larger young generation (MiB) makes Node collect garbage less often.
PYRIGHT = NODE_OPTIONS="$$NODE_OPTIONS --max-semi-space-size=128" $(BIN)/pyright --pythonpath $(BIN)/python
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# Tests and demonstrations start hundreds of processes, each of which would otherwise compile the sources again.
unexport PYTHONDONTWRITEBYTECODE
# The lanes of the test suite run side by side, because each spends much of its time waiting. `test-rest` is everything
# else. The largest rooms are divided alphabetically into two or three lanes that take about equally long.
SILO_TESTS := tests/datacenter tests/benchmarks/test_silo.py tests/benchmarks/test_silo_gpu.py
FIRST_SILO_TESTS := $(wildcard tests/datacenter/[a-l]*/)
LAST_SILO_TESTS := $(wildcard tests/datacenter/[m-z]*/ tests/datacenter/test_*.py) $(filter-out tests/datacenter,$(SILO_TESTS))
SYSTEM_TESTS := tests/system
FIRST_SYSTEM_TESTS := $(wildcard tests/system/test_[a-r]*.py)
LAST_SYSTEM_TESTS := $(wildcard tests/system/test_[s-z]*.py)
FIRST_SERVER_TESTS := $(wildcard tests/server/[a-q]*/ tests/server/r[a-o]*/)
MIDDLE_SERVER_TESTS := $(wildcard tests/server/r[p-z]*/)
LAST_SERVER_TESTS := $(wildcard tests/server/[s-z]*/ tests/server/test_*.py)
CLIENT_TESTS := tests/client tests/examples tests/simulation
# The fast tests are in lanes of one process, without folders that are slow as a whole: statistics, fuzzing, fits,
# simulations, examples, backups. Slow modules elsewhere are marked `slow`. FAST_OF removes slow folders from arguments,
# because pytest does not ignore a folder that is also an argument.
FAST := "not system and not ranks and not slow"
SLOW_TESTS := tests/accounting tests/benchmarks tests/examples tests/fuzz tests/simulation tests/server/backup \
  tests/server/privacy_audit tests/server/privacy/noise tests/server/sampling tests/datacenter/scaling
# Output of each lane, in a file with its name.
LANES := $(TOOLS)/lanes
FAST_ONLY = -m $(FAST) $(addprefix --ignore ,$(SLOW_TESTS))
FAST_OF = $(filter-out $(SLOW_TESTS) $(addsuffix /,$(SLOW_TESTS)),$(1))
ROOMS := protos common client server datacenter tests benchmarks examples packaging

# The generator is pinned to the oldest protobuf runtime that pyproject.toml admits (6.31).
PROTOGEN := grpcio-tools==1.76.0 grpcio==1.85.1 protobuf==6.33.6 mypy-protobuf==3.7.0 types-protobuf==7.35.1.20260906
# Python 3.11's own pip takes three times the processor time to find the versions, and does not know dependency groups.
NEWER_PIP := pip==26.3
BUF := @bufbuild/buf@1.75.0
MERMAID := mermaid@11.16.0
AXE := axe-core@4.14.1

# $(call lane,NAME,ARGUMENTS): run the tests of a lane, with its name before each line.
define lane
	mkdir -p $(LANES)
	set -o pipefail; $(BIN)/pytest $(2) 2>&1 | tee "$(LANES)/$(1)" | sed -u "s/^/$$(printf %-13s '$(1)') /"
endef

# $(call lanes,TARGETS): run several lanes side by side, then print their failures.
define lanes
	rm -rf $(LANES)
	$(MAKE) --no-print-directory --jobs=$(words $(1)) $(1) || { $(MAKE) --no-print-directory test-failures; exit 1; }
endef

.PHONY: dev demo demo-private demo-silo test test-every test-failures test-silo test-silo-first test-silo-last test-system test-system-first test-system-last \
  test-server test-server-first test-server-middle test-server-last test-clients test-rest \
  test-fast test-fast-silo test-fast-server-first test-fast-server-middle test-fast-server-last test-fast-clients test-fast-rest test-newest test-floor kernels node-client oidc-provider browser-tools screenshots lint types types-every format hooks proto proto-check bench bench-silo bench-smoke bench-smoke-every \
  dist dist-check gpu-wheels site lock clean

dev: $(VENV)/.dev ## the development environment, in .venv

demo: $(VENV)/.demo ## train a digit classifier over eight client processes
	$(BIN)/atoll demo

demo-private: $(VENV)/.demo ## the same over 200 participants, with and without differential privacy
	$(BIN)/atoll demo --private

demo-silo: $(VENV)/.demo-silo ## train a language model over two silos of two ranks and two edge clients
	$(BIN)/atoll silo demo

test: $(VENV)/.dev ## the whole test suite, in nine lanes side by side
	$(call lanes,test-silo-first test-silo-last test-server-first test-server-middle test-server-last test-clients test-rest \
	  test-system-first test-system-last)

test-failures: ## print the failures of the last test run again, without the other output
	@cd $(LANES); grep --with-filename --extended-regexp '^(_{3,} .* _{3,}$$|E   |FAILED |ERROR[: ]|\++ Timeout)' * || echo 'no lane recorded a failure'

test-every: ## the whole test suite, with the tests that a commit leaves out (docs/testing.md)
	PYTEST_ADDOPTS=--every $(MAKE) --no-print-directory test

test-silo: $(VENV)/.dev ## training in a silo, in two lanes
	$(call lanes,test-silo-first test-silo-last)

test-silo-first: $(VENV)/.dev
	$(call lane,silo a-l,$(FIRST_SILO_TESTS))

test-silo-last: $(VENV)/.dev
	$(call lane,silo m-z,$(LAST_SILO_TESTS))

test-system: $(VENV)/.dev ## servers, clients and silos as real processes, and their faults, in two lanes
	$(call lanes,test-system-first test-system-last)

test-system-first: $(VENV)/.dev
	$(call lane,system a-r,$(FIRST_SYSTEM_TESTS))

test-system-last: $(VENV)/.dev
	$(call lane,system s-z,$(LAST_SYSTEM_TESTS))

test-server: $(VENV)/.dev ## the server's modules, in three lanes
	$(call lanes,test-server-first test-server-middle test-server-last)

test-server-first: $(VENV)/.dev
	$(call lane,server a-ro,$(FIRST_SERVER_TESTS))

test-server-middle: $(VENV)/.dev
	$(call lane,server rp-rz,$(MIDDLE_SERVER_TESTS))

test-server-last: $(VENV)/.dev
	$(call lane,server s-z,$(LAST_SERVER_TESTS))

test-clients: $(VENV)/.dev ## clients, simulations and examples
	$(call lane,clients,$(CLIENT_TESTS))

test-rest: $(VENV)/.dev ## everything else
	$(call lane,rest,$(addprefix --ignore ,$(SILO_TESTS) $(SYSTEM_TESTS) tests/server $(CLIENT_TESTS)))

kernels: $(VENV)/.dev ## in a fresh clone: compile the server's loops and common modules once, before several lanes do
	$(BIN)/python -c "import atoll.datacenter.federation.silo, matplotlib.figure, scipy.stats, sklearn.datasets, torch._inductor.compile_fx; \
	  from atoll.server.aggregation import warm; warm()"

node-client: $(TOOLS)/conformance/.installed ## install what the tests of the Node client need; otherwise they are skipped

oidc-provider: $(TOOLS)/oidc/.installed ## install what the tests of operators' sign-in need; otherwise they are skipped

browser-tools: $(TOOLS)/node_modules/.installed ## install the check of the console's accessibility; Chromium must be on the system (Debian: chromium)

screenshots: $(VENV)/.dev ## make the screenshots of docs/console.md again, with Chromium
	ATOLL_SCREENSHOTS=docs/assets/console $(BIN)/pytest tests/console/test_browser.py -k picture

test-fast: $(VENV)/.dev ## without the tests that start many processes or take seconds each, in six lanes side by side
	$(call lanes,test-fast-silo test-fast-server-first test-fast-server-middle test-fast-server-last test-fast-clients \
	  test-fast-rest)

test-fast-silo: $(VENV)/.dev
	$(call lane,silo,$(FAST_ONLY) tests/datacenter)

test-fast-server-first: $(VENV)/.dev
	$(call lane,server a-ro,$(FAST_ONLY) $(call FAST_OF,$(FIRST_SERVER_TESTS)))

test-fast-server-middle: $(VENV)/.dev
	$(call lane,server rp-rz,$(FAST_ONLY) $(call FAST_OF,$(MIDDLE_SERVER_TESTS)))

test-fast-server-last: $(VENV)/.dev
	$(call lane,server s-z,$(FAST_ONLY) $(call FAST_OF,$(LAST_SERVER_TESTS)))

test-fast-clients: $(VENV)/.dev
	$(call lane,clients,$(FAST_ONLY) $(call FAST_OF,$(CLIENT_TESTS)))

test-fast-rest: $(VENV)/.dev
	$(call lane,rest,$(FAST_ONLY) $(addprefix --ignore ,tests/system tests/server tests/datacenter $(CLIENT_TESTS)))

test-newest: ## the fast tests with the newest version of each dependency, in a new environment; KEEP=torch keeps torch's version
	rm -rf $(VENV)-newest
	mkdir -p $(TOOLS)
	grep --extended-regexp '^($(KEEP))==' constraints.txt > $(TOOLS)/newest.txt || true
	$(MAKE) VENV=$(VENV)-newest CONSTRAINTS=$(TOOLS)/newest.txt SLOW_TESTS= FAST='"not system and not ranks"' test-fast

test-floor: ## the silo's tests with the oldest torch that pyproject.toml admits, in a new environment (6 GB, with CUDA's libraries)
	rm -rf $(VENV)-floor
	mkdir -p $(TOOLS)
	grep --extended-regexp --invert-match '^(torch|torchvision|torchao|triton|nvidia-.*|cuda-.*|setuptools)==' constraints.txt > $(TOOLS)/floor.txt
	echo 'torch==2.11.0' >> $(TOOLS)/floor.txt
	$(MAKE) VENV=$(VENV)-floor CONSTRAINTS=$(TOOLS)/floor.txt test-silo

lint: $(VENV)/.dev $(TOOLS)/node_modules/.installed
	$(BIN)/ruff check $(ROOMS)
	$(BIN)/ruff format --check $(ROOMS)
	$(TOOLS)/node_modules/.bin/buf lint protos

types: $(VENV)/.dev ## mypy over everything; pyright over the code that users import, as their editors show it
	$(BIN)/mypy
	$(PYRIGHT)

types-every: types ## pyright over everything
	$(PYRIGHT) server datacenter tests benchmarks

format: $(VENV)/.dev
	$(BIN)/ruff check --fix $(ROOMS)
	$(BIN)/ruff format $(ROOMS)

hooks: $(VENV)/.dev $(TOOL)/.installed $(TOOLS)/node_modules/.installed ## format, lint and check documents before each commit
	$(TOOL)/pre-commit install

# $(call generate,FOLDER): generate the protobuf code; keep a module of services only if it has services.
define generate
	PATH="$(CURDIR)/$(TOOLS)/protogen/bin:$$PATH" python -m grpc_tools.protoc -I protos --python_out=$(1) \
	  --grpc_python_out=$(1) --mypy_out=quiet:$(1) --mypy_grpc_out=quiet:$(1) protos/atoll/wire/v1/*.proto
	for file in $(1)/atoll/wire/v1/*_pb2_grpc.py; do grep -q Servicer $$file || rm $$file $${file}i; done
endef

proto: $(TOOLS)/protogen/.installed ## generate the protobuf code again
	rm -f protos/atoll/wire/v1/*_pb2*
	$(call generate,protos)

# In a folder of its own, because tests that import the code may be running.
proto-check: $(TOOLS)/protogen/.installed ## fail if the generated code in the repository does not match the protos
	rm -rf $(TOOLS)/generated
	mkdir -p $(TOOLS)/generated
	$(call generate,$(TOOLS)/generated)
	diff --recursive --exclude=__pycache__ --exclude=__init__.py --exclude='*.proto' $(TOOLS)/generated/atoll/wire/v1 protos/atoll/wire/v1

bench: $(VENV)/.dev ## every benchmark; results under benchmarks/results
	$(BIN)/python -m benchmarks

bench-silo: $(VENV)/.dev ## benchmarks of silo training; results under benchmarks/results/silo-*.json
	$(BIN)/python -m benchmarks.silo

bench-smoke: $(VENV)/.dev ## a few seconds of each benchmark that no test runs, except those that train silos for minutes
	$(BIN)/python -m benchmarks --smoke
	$(BIN)/python -m benchmarks.silo --smoke exchange overhead planner

bench-smoke-every: bench-smoke
	$(BIN)/python -m benchmarks.silo --smoke collectives diloco faults gpu

dist: $(TOOL)/.installed ## build the sdist, and the wheel from it, into dist/
	rm -rf dist
	$(TOOL)/python -m build --no-isolation --outdir dist

dist-check: dist $(VENV)/.dev ## check that the wheel runs the demonstration without a checkout, and that the sdist's tests start
	packaging/check_wheel.sh dist/*.whl $(BIN)/python
	packaging/check_sdist.sh dist/*.tar.gz $(BIN)/python

# Python version of the machine without a network, for `make gpu-wheels`.
PYTHON_THERE ?= 3.12

gpu-wheels: dist $(VENV)/.dev ## put Atoll's wheel, and wheels that a GPU image lacks, into wheels/, for a machine without a network
	rm -rf wheels
	$(BIN)/python packaging/gpu_wheels.py wheels --python $(PYTHON_THERE)
	cp dist/*.whl wheels

site: $(TOOL)/.installed $(TOOLS)/node_modules/.installed ## the documents as a site, in site/
	$(TOOL)/properdocs build --strict --quiet

lock: $(TOOL)/.installed ## update constraints.txt for a changed pyproject.toml; UPGRADE=--upgrade takes the newest versions
	$(TOOL)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --group tools --no-annotate \
	  --custom-compile-command "make lock" $(UPGRADE) --output-file constraints.txt pyproject.toml

clean: ## remove everything that make has created
	rm -rf $(VENV) $(VENV)-newest $(TOOLS) dist wheels site

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Atoll needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) install $(NEWER_PIP)

$(VENV)/.demo: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@echo "installing into $(VENV) (about a minute)"
	$(PIP) install -c $(CONSTRAINTS) -e ".[demo]"
	@touch $@

$(VENV)/.demo-silo: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@echo "installing into $(VENV) with torch (a few minutes)"
	$(PIP) install -c $(CONSTRAINTS) -e ".[server,silo]"
	@touch $@

# Not compiled: the tests import a third of what is installed, and compiling all of it takes as long as installing it.
$(VENV)/.dev: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@echo "installing into $(VENV) with torch and the development tools (a few minutes)"
	$(PIP) install --no-compile -c $(CONSTRAINTS) -e ".[dev]"
	@touch $@ $(VENV)/.demo $(VENV)/.demo-private $(VENV)/.demo-silo

$(TOOL)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(TOOLS)/python
	$(TOOL)/python -m pip --disable-pip-version-check --quiet install $(NEWER_PIP)
	$(TOOL)/python -m pip --disable-pip-version-check --quiet install -c constraints.txt --group tools
	@touch $@

$(TOOLS)/protogen/.installed: Makefile
	$(PYTHON) -m venv $(TOOLS)/protogen
	$(TOOLS)/protogen/bin/python -m pip --disable-pip-version-check --quiet install $(PROTOGEN)
	@touch $@

$(TOOLS)/conformance/.installed: tests/conformance/node/package.json tests/conformance/node/package-lock.json
	mkdir -p $(@D)
	cp $^ $(@D)
	npm ci --silent --ignore-scripts --prefix $(@D)
	@touch $@

$(TOOLS)/oidc/.installed: tests/oidc/node/package.json tests/oidc/node/package-lock.json
	mkdir -p $(@D)
	cp $^ $(@D)
	npm ci --silent --ignore-scripts --prefix $(@D)
	@touch $@

$(TOOLS)/node_modules/.installed: Makefile
	mkdir -p $(TOOLS)
	npm install --silent --no-save --ignore-scripts --prefix $(TOOLS) $(BUF) $(MERMAID) $(AXE)
	@touch $@
