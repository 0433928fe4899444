# The ways in. `make setup` makes .venv; everything else uses it.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

# Where pip takes torch from. Empty: pip's default index. Set it to the address of an index with
# CPU-only builds where the default one brings gigabytes of CUDA libraries you do not need:
#   make setup TORCH_INDEX=https://…/cpu
TORCH_INDEX ?=
TORCH := torch==2.13.0

UP ?=
STAMP := $(VENV)/.stamp

.PHONY: setup demo up test lint protos bench clean

setup: $(STAMP)

$(STAMP): pyproject.toml $(wildcard shared/engine/native/*.cpp shared/engine/native/*.h)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) '$(TORCH)'
	$(BIN)/python -m pip install --quiet -e '.[dev]'
	touch $@

# The whole stack on free ports, one question about an indexed folder, its timeline, a clean end.
demo: setup
	$(BIN)/python -m services.launcher.demo

# make up UP='--decode 2 --corpus my-folder'
up: setup
	$(BIN)/penstock up $(UP)

# Modules beside each other, those with processes one after another: see tests/conftest.py.
test: setup
	$(BIN)/pytest -q -n auto --maxprocesses 4

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror shared/engine/native/*.cpp shared/engine/native/*.h
	$(BIN)/mypy

protos: setup
	$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. --grpc_python_out=. \
		protos/penstock/v1/inference.proto

bench: setup
	$(BIN)/python -m tests.bench.bench_pipeline
	$(BIN)/python -m tests.bench.bench_kv
	$(BIN)/penstock bench engine --model shared/demo/models/target --prompt-tokens 512 --output-tokens 64
	$(BIN)/python -m tests.bench.bench_quant

clean:
	rm -rf $(VENV) .penstock .pytest_cache .mypy_cache .ruff_cache build *.egg-info
