"""What quantization costs in quality: `python -m tests.bench.bench_quant [--model DIR ...]`.

For each model, a table against bf16: perplexity of held-out books, the share of positions at which the greedy
choice is the same (teacher-forced on the same text), and the share of free-running greedy continuations of 64
tokens that are the same to the last token. "weights only" rows run the dequantized weights as a dense model
in float32: the difference to the row above is what quantized activations cost.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from shared.demo.corpus import pieces, read_books
from shared.engine import Engine, EngineConfig, SamplingParams
from shared.engine.loading.linear import DenseLinear, dequantize
from shared.engine.loading.quantize import policy, quantize
from tests.support.data import REPOSITORY, data_dir

DEMO_MODEL = REPOSITORY / "shared" / "demo" / "models" / "target"
CONTEXT_TOKENS = 128  # of every window, read but not scored
CONTINUATION_TOKENS = 64
CONTINUATIONS = 20  # of the windows, spread evenly
PROMPT_TOKENS = 64
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Variant:
    label: str
    fields: dict[str, Any]
    weights_only: str = "none"  # quantization to apply to the checkpoint itself


VARIANTS = (
    Variant("bf16", {"dtype": "bfloat16"}),
    Variant("float32", {"dtype": "float32"}),
    Variant("int8", {"dtype": "bfloat16", "quantization": "int8"}),
    Variant("int8, weights only", {"dtype": "float32"}, "int8"),
    Variant("int4", {"dtype": "bfloat16", "quantization": "int4"}),
    Variant("int4, weights only", {"dtype": "float32"}, "int4"),
    Variant("int4, group 32", {"dtype": "bfloat16", "quantization": "int4", "quant_group": 32}),
    Variant("int4, group 128", {"dtype": "bfloat16", "quantization": "int4", "quant_group": 128}),
    Variant("bf16, KV int8", {"dtype": "bfloat16", "kv_dtype": "int8"}),
    Variant("int8, KV int8", {"dtype": "bfloat16", "quantization": "int8", "kv_dtype": "int8"}),
    Variant("int4, KV int8", {"dtype": "bfloat16", "quantization": "int4", "kv_dtype": "int8"}),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    nats: float  # mean loss per scored token
    choices: Tensor  # [scored tokens]: greedy choice after each
    continuations: tuple[tuple[int, ...], ...]


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    for model in options.model:
        windows = _windows(model, options.books, options.windows)
        print(f"\n{model.name}: {len(windows)} windows of {len(windows[0]) - 1} tokens of held-out books")
        print(f"{'':22}{'perplexity':>12}{'against bf16':>14}{'same choice':>13}{'same 64':>9}")
        base: Outcome | None = None
        for variant in VARIANTS:
            outcome = _run(model, variant, windows, options)
            base = base or outcome
            print(_row(variant.label, outcome, base), flush=True)


def _row(label: str, outcome: Outcome, base: Outcome) -> str:
    worse = math.expm1(outcome.nats - base.nats)
    same_choice = (outcome.choices == base.choices).double().mean().item()
    pairs = list(zip(outcome.continuations, base.continuations, strict=True))
    same = sum(mine == theirs for mine, theirs in pairs) / len(pairs)
    return f"{label:22}{math.exp(outcome.nats):12.4f}{worse:+14.2%}{same_choice:13.2%}{same:9.0%}"


def _run(
    model: Path, variant: Variant, windows: Sequence[Sequence[int]], options: argparse.Namespace
) -> Outcome:
    with tempfile.TemporaryDirectory() as scratch:
        folder = model
        if variant.weights_only != "none":
            folder = _dequantized_copy(model, Path(scratch), variant.weights_only)
        fields = {"backend": options.backend, "threads": options.threads, **variant.fields}
        engine = Engine(EngineConfig(str(folder), **fields))
    nats, choices = [], []
    for window in windows:
        logits = engine.logits(window[:-1])[CONTEXT_TOKENS:]
        targets = torch.tensor(window[1 + CONTEXT_TOKENS :])
        nats.append(functional.cross_entropy(logits, targets).item())
        choices.append(logits.argmax(-1))
    spread = windows[:: math.ceil(len(windows) / CONTINUATIONS)]
    continuations = tuple(_continue(engine, spread))
    return Outcome(sum(nats) / len(nats), torch.cat(choices), continuations)


def _continue(engine: Engine, windows: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """The greedy continuation of each window's first tokens, one sequence at a time."""
    params = SamplingParams(temperature=0.0, max_tokens=CONTINUATION_TOKENS, ignore_eos=True)
    for window in windows:
        engine.admit("bench", window[:PROMPT_TOKENS], PROMPT_TOKENS, params)
        drawn: list[int] = []
        while engine.has_work:
            for output in engine.step().outputs:
                drawn += output.token_ids
        yield tuple(drawn)


def _dequantized_copy(model: Path, folder: Path, quantization: str) -> Path:
    """A float32 checkpoint of what the quantized weights stand for; its head is its own even where tied."""
    tensors = {
        name: tensor for path in model.glob("*.safetensors") for name, tensor in load_file(path).items()
    }
    tensors.setdefault(HEAD, tensors[EMBEDDING])
    for name, tensor in tensors.items():
        wanted = policy(quantization, 0, "head" if name == HEAD else "layer")
        if name == HEAD or name.endswith("_proj.weight"):
            assert wanted is not None
            quantized = quantize(DenseLinear(tensor), wanted.bits, wanted.group, name)
            tensors[name] = dequantize(quantized, torch.float32)
        else:
            tensors[name] = tensor.float().clone()
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((model / "config.json").read_text("utf-8"))
    config["tie_word_embeddings"] = False
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        if (model / name).is_file():
            shutil.copy(model / name, folder / name)
    return folder


def _windows(model: Path, books: Path, count: int) -> list[list[int]]:
    """`count` windows spread evenly over the books that no demo model has seen, each with one more token."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokens: list[int] = []
    for text in read_books(books).held_out:
        for piece in tokenizer.encode_batch_fast(list(pieces(text)), add_special_tokens=False):
            tokens += piece.ids
    context = json.loads((model / "config.json").read_text("utf-8"))["max_position_embeddings"]
    size = min(512, context) + 1
    stride = (len(tokens) - size) // count
    return [tokens[start : start + size] for start in range(0, stride * count, stride)]


def _options() -> argparse.Namespace:
    data = data_dir()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model",
        type=Path,
        nargs="+",
        default=[DEMO_MODEL, *([data / "stories260k"] if data else [])],
        help="Hugging Face directories of Llama shape; default: the demo target and stories260k",
    )
    parser.add_argument("--books", type=Path, help="folder of *.md texts; the shared test data by default")
    parser.add_argument("--windows", type=int, default=40, help="windows of text to score")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--backend", choices=("auto", "native", "torch"), default="auto")
    options = parser.parse_args()
    options.books = options.books or (data / "books" if data else None)
    if options.books is None or not any(options.books.glob("*.md")):
        parser.error("no *.md books to read; name their folder with --books")
    return options


if __name__ == "__main__":
    main()
