"""What quantization costs in quality: `python -m tests.bench.bench_quant [--model DIR ...]`.

For each model, a table against bf16: perplexity of held-out books, the share of positions at which the greedy
choice is the same (teacher-forced on the same text), and the share of free-running greedy continuations of 64
tokens that are the same to the last token. "weights only" rows run the dequantized weights as a dense model
in float32: the difference to the row above is what quantized activations cost.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from shared.engine import Engine, EngineConfig
from shared.engine.loading.linear import DenseLinear, dequantize
from shared.engine.loading.quantize import policy, quantize
from tests.bench.text_scores import TextScores, held_out_windows, score_text
from tests.support.data import REPOSITORY, data_dir

DEMO_MODEL = REPOSITORY / "shared" / "demo" / "models" / "target"
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


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    for model in options.model:
        windows = _windows(model, options.books, options.windows)
        print(f"\n{model.name}: {len(windows)} windows of {len(windows[0]) - 1} tokens of held-out books")
        print(f"{'':22}{'perplexity':>12}{'against bf16':>14}{'same choice':>13}{'same 64':>9}")
        base: TextScores | None = None
        for variant in VARIANTS:
            scores = _run(model, variant, windows, options)
            base = base or scores
            print(_row(variant.label, scores, base), flush=True)


def _row(label: str, scores: TextScores, base: TextScores) -> str:
    return (
        f"{label:22}{scores.perplexity:12.4f}{scores.worse_than(base):+14.2%}"
        f"{scores.same_choice(base):13.2%}{scores.same_continuation(base):9.0%}"
    )


def _run(
    model: Path, variant: Variant, windows: Sequence[Sequence[int]], options: argparse.Namespace
) -> TextScores:
    with tempfile.TemporaryDirectory() as scratch:
        folder = model
        if variant.weights_only != "none":
            folder = _dequantized_copy(model, Path(scratch), variant.weights_only)
        fields = {"backend": options.backend, "threads": options.threads, **variant.fields}
        engine = Engine(EngineConfig(str(folder), **fields))
    return score_text(engine, windows)


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
    context = json.loads((model / "config.json").read_text("utf-8"))["max_position_embeddings"]

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    return held_out_windows(encode, books, min(512, context), count)


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
