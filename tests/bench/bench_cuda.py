"""The GPU backend: right first, then fast. Needs a GPU; says so where there is none.

    python -m tests.bench.bench_cuda [--skip-peer] [--json FILE]

1. The same random weights on the CPU (reference model) and on the GPU: largest difference of logits and
   greedy tokens, for every KV format; whether deterministic mode gives the same bits in every batch.
2. The shape of Llama 3.1 8B with random weights made on the GPU, in bf16, deterministic and in fp8: decode
   at batch 1 against the measured copy bandwidth, decode at batch 64, prompts of 2048 and 8192 tokens against
   the measured rate of matrix products, and transformers on the same machine.

`TRITON_INTERPRET=1 python -m tests.bench.bench_cuda --rehearse` runs all of it on the CPU with a tiny shape;
its figures mean nothing.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from shared.engine.batch import Batch, Span
from shared.engine.cuda.fp8_linear import to_fp8
from shared.engine.cuda.launch import INTERPRETED
from shared.engine.cuda.model import CudaModel
from shared.engine.cuda.weight_map import map_layer
from shared.engine.torch_backend.model import TorchModel
from tests.bench.cuda_models import (
    CHECK,
    LLAMA_8B,
    REHEARSAL,
    Shape,
    model_config,
    moved,
    pool_for,
    random_weights,
)

NO_GPU = 2  # exit status
SECONDS_EACH = 2.0  # how long a measurement repeats what it measures


@dataclass(frozen=True)
class Row:
    what: str
    value: float
    unit: str
    share: float | None = None  # of the limit measured in this run


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rehearse", action="store_true", help="tiny shape on the CPU; figures mean nothing")
    parser.add_argument("--skip-peer", action="store_true", help="leave out transformers")
    parser.add_argument("--json", type=Path, help="write the rows there too")
    options = parser.parse_args(arguments)
    if options.rehearse:
        if not INTERPRETED:
            parser.error("--rehearse needs TRITON_INTERPRET=1 in the environment")
    elif not torch.cuda.is_available():
        print("There is no GPU here, so nothing was measured. Run this on a machine with one, or --rehearse.")
        return NO_GPU
    device = torch.device("cpu" if options.rehearse else "cuda")
    name = "rehearsal on the CPU" if options.rehearse else torch.cuda.get_device_name()
    print(f"# {name}, torch {torch.__version__}")
    rows = check(REHEARSAL if options.rehearse else CHECK, device)
    rows.append(check_bits(REHEARSAL if options.rehearse else CHECK, device))
    shape = REHEARSAL if options.rehearse else LLAMA_8B
    copy_rate, product_rate = limits(shape, device)
    rows += [
        Row("copy bandwidth", copy_rate / 1e9, "GB/s"),
        Row("bf16 product", product_rate / 1e12, "TFLOP/s"),
    ]
    for variant in ("bf16", "bf16 deterministic", "fp8"):
        rows += speed(shape, device, variant, copy_rate, product_rate)
        _empty(device)
    if not options.skip_peer:
        rows += peer(shape, device, copy_rate, product_rate)
    for row in rows:
        share = "" if row.share is None else f"  {100 * row.share:5.1f} % of the limit"
        print(f"{row.what:58} {row.value:12.4g} {row.unit:9}{share}")
    if options.json is not None:
        options.json.write_text(json.dumps({"device": name, "rows": [asdict(row) for row in rows]}, indent=1))
    return 0


# --- right ---


def check(shape: Shape, device: torch.device) -> list[Row]:
    """One prompt in two chunks, then greedy decode, on the CPU and on the device."""

    rows = []
    for dtype, kv_dtype in (
        ("float32", "auto"),
        ("float32", "int8"),
        ("float32", "fp8"),
        ("bfloat16", "auto"),
        ("bfloat16", "fp8"),
    ):
        config = model_config(shape, dtype)
        torch_dtype = torch.float32 if dtype == "float32" else torch.bfloat16
        weights = random_weights(shape, torch_dtype, torch.device("cpu"))
        cpu = TorchModel(config, weights, pool_for(config, kv_dtype, 64, torch.device("cpu")), 64)
        gpu = CudaModel(
            config, moved(weights, device), pool_for(config, kv_dtype, 64, device), 64, graph_rows=2
        )
        blocks = [3, 0, 2, 1]
        worst, agreed, tokens = 0.0, 0, [(7 * at + 1) % shape.vocab for at in range(25)]
        for start, end in ((0, 18), (18, 25), *((at, at + 1) for at in range(25, 33))):
            batch = Batch(tokens[start:end], [Span(start, end - start, [blocks])], range(end - start))
            ours, expected = gpu.forward(batch), cpu.forward(batch)
            worst = max(worst, (ours - expected).abs().max().item())
            agreed += int(ours[-1].argmax() == expected[-1].argmax())
            tokens.append(int(expected[-1].argmax()))
        label = f"{dtype}, KV {kv_dtype}"
        rows += [
            Row(f"{label}: largest difference of logits to the CPU", worst, ""),
            Row(f"{label}: next tokens equal, of 10", agreed, ""),
        ]
    return rows


def check_bits(shape: Shape, device: torch.device) -> Row:
    """Deterministic mode: one row's logits after its prompt in chunks, at once, and in company."""
    config = model_config(shape, "bfloat16")
    weights = random_weights(shape, torch.bfloat16, device)
    model = CudaModel(
        config, weights, pool_for(config, "auto", 128, device), 64, graph_rows=4, deterministic=True
    )
    own, other = [3, 0, 2], [1, 4]
    ways = (
        [[(0, 40, own)]],
        [[(0, 19, own)], [(19, 20, own)], [(39, 1, own)]],
        [[(0, 7, other), (0, 39, own)], [(7, 2, other), (39, 1, own)]],
    )
    lasts = []
    for way in ways:
        for spans in way:
            tokens = [
                (7 * at + 1) % shape.vocab for start, rows, _ in spans for at in range(start, start + rows)
            ]
            logits = model.forward(
                Batch(
                    tokens, [Span(start, rows, [blocks]) for start, rows, blocks in spans], (len(tokens) - 1,)
                )
            )
        lasts.append(logits[0])
    equal = sum(torch.equal(lasts[0], last) for last in lasts[1:])
    return Row("deterministic: ways that give the same bits, of 2", equal, "")


# --- fast ---


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Mean time of one call, after two to warm up."""
    for _ in range(2):
        work()
    _wait(device)
    calls, began = 0, time.perf_counter()
    least = SECONDS_EACH if device.type == "cuda" else 0.0
    while not calls or time.perf_counter() - began < least:
        work()
        _wait(device)
        calls += 1
    return (time.perf_counter() - began) / calls


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def limits(shape: Shape, device: torch.device) -> tuple[float, float]:
    """Bytes per second of a copy (read and written), operations per second of a bf16 product."""
    source = torch.empty(shape.copy_mb << 20, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy_rate = 2 * source.nbytes / seconds_of(partial(target.copy_, source), device)
    side = shape.product_side
    left, right = (torch.randn(side, side, dtype=torch.bfloat16, device=device) for _ in range(2))
    return copy_rate, 2 * side**3 / seconds_of(lambda: left @ right, device)


def speed(
    shape: Shape, device: torch.device, variant: str, copy_rate: float, product_rate: float
) -> list[Row]:

    config = model_config(shape, "bfloat16")
    weights = random_weights(shape, torch.bfloat16, device)
    if variant == "fp8":
        weights = replace(weights, layers=tuple(map_layer(layer, to_fp8) for layer in weights.layers))
    weight_bytes = sum(_bytes(linear) for linear in _linears(weights))
    each = -(-(shape.context + 1) // 16)
    tokens = max(16 * each * shape.batch, *shape.prompts)
    pool = pool_for(config, "auto", tokens, device)
    model = CudaModel(
        config,
        weights,
        pool,
        max(*shape.prompts, shape.context + 1) + 16,
        graph_rows=shape.batch,
        deterministic=variant == "bf16 deterministic",
    )

    def decode(batch_size: int) -> float:
        spans = [Span(shape.context, 1, [range(row * each, (row + 1) * each)]) for row in range(batch_size)]
        batch = Batch([5] * batch_size, spans, range(batch_size))
        return seconds_of(partial(model.forward, batch), device)

    def prefill(length: int) -> float:
        batch = Batch([5] * length, [Span(0, length, [range(-(-length // 16))])], (length - 1,))
        return seconds_of(partial(model.forward, batch), device)

    one, many = decode(1), decode(shape.batch)
    kv_bytes = shape.context * pool.layout.block_bytes // 16
    rows = [
        Row(f"{variant} decode b1", 1 / one, "tokens/s", (weight_bytes + kv_bytes) / one / copy_rate),
        Row(
            f"{variant} decode b{shape.batch}",
            shape.batch / many,
            "tokens/s",
            (weight_bytes + shape.batch * kv_bytes) / many / copy_rate,
        ),
    ]
    for length in shape.prompts:
        rate = operations(shape, length) / prefill(length)
        rows.append(Row(f"{variant} prompt of {length}", rate / 1e12, "TFLOP/s", rate / product_rate))
    return rows


def operations(shape: Shape, length: int) -> float:
    """Of one prompt: two per weight and token, four per head dimension, query and visible key, one head."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    layer = shape.hidden * (2 * queries + 2 * keys + 3 * shape.inner)
    attention = 4 * queries * length * (length + 1) / 2
    return shape.layers * (2.0 * layer * length + attention) + 2.0 * shape.hidden * shape.vocab


def _linears(weights: Any) -> list[Any]:
    linears = [weights.head]
    for layer in weights.layers:
        linears += [layer.qkv, layer.output, layer.mlp.gate_up, layer.mlp.down]
    return linears


def _bytes(linear: Any) -> int:
    codes = getattr(linear, "codes", None)
    return int(linear.weight.nbytes if codes is None else codes.nbytes)


def _empty(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


# --- beside ---


@torch.inference_mode()
def peer(shape: Shape, device: torch.device, copy_rate: float, product_rate: float) -> list[Row]:
    """transformers with its defaults: SDPA attention, a dynamic cache."""

    config = LlamaConfig(
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=131072,
    )
    torch.set_default_dtype(torch.bfloat16)
    try:
        with device:
            model: Any = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(torch.float32)
    model.eval()
    weight_bytes = sum(p.nbytes for name, p in model.named_parameters() if "embed" not in name)

    def decode(batch_size: int) -> float:
        prompt = torch.full((batch_size, shape.context), 5, device=device)
        cache = model(prompt, use_cache=True, logits_to_keep=1).cache
        token = torch.full((batch_size, 1), 5, device=device)
        return seconds_of(partial(_forward, model, token, cache=cache, use_cache=True), device)

    rows = []
    for batch_size in (1, shape.batch):
        seconds = decode(batch_size)
        share = weight_bytes / seconds / copy_rate if batch_size == 1 else None
        rows.append(Row(f"transformers bf16 decode b{batch_size}", batch_size / seconds, "tokens/s", share))
    for length in shape.prompts:
        prompt = torch.full((1, length), 5, device=device)
        seconds = seconds_of(partial(_forward, model, prompt, logits_to_keep=1), device)
        rate = operations(shape, length) / seconds
        rows.append(Row(f"transformers bf16 prompt of {length}", rate / 1e12, "TFLOP/s", rate / product_rate))
    return rows


def _forward(model: Any, token_ids: torch.Tensor, **options: Any) -> None:
    model(token_ids, **options).logits.cpu()


if __name__ == "__main__":
    sys.exit(main())
