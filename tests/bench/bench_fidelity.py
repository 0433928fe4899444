"""How far from exact arithmetic on the same weights: `python -m tests.bench.bench_fidelity FILE.gguf`.

The reference is transformers in float32 on the weights that the file stands for. Texts are a third each of
held-out books, chats (MT-bench's questions through the chat template, with its answers where it has some) and
code (HumanEval), in windows of 512 tokens. A row says of some other arithmetic on the same file: the mean of
KL(float32 || it) in nats with the half width of its 95 % interval over windows, the 99th percentile of that,
the share of positions with the same most likely token, the perplexity, and the mean error of the prompt
tokens' log-probabilities.

Rows named `rows …` are float32 with nothing but the inputs of linears rounded, of all or of one kind of them:
what a rounding costs by itself, before there are kernels for it.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from shared.engine import Engine, EngineConfig
from shared.engine.loading.row_numbers import quantize_rows
from shared.messages import ChatTurn
from shared.text.tokenizer import TextTokenizer
from tests.bench.llama_cpp_process import llama_cpp_process
from tests.bench.text_scores import held_out_windows
from tests.support.data import data_dir

WINDOW_TOKENS = 512
COLUMNS = ("arithmetic", "KL mean", "±", "KL p99", "same choice", "perplexity", "error of log-probs")
KINDS = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv"),
    **dict.fromkeys(("gate_proj", "up_proj"), "gate_up"),
    "o_proj": "output",
    "down_proj": "down",
    "lm_head": "head",
}

Logits = Callable[[list[int]], Tensor]
"""Token ids -> float32 [tokens, vocab]"""
Rounding = Callable[[Tensor], Tensor]


@dataclass(slots=True)
class Divergence:
    """What has been seen of one arithmetic, window by window."""

    kl: list[Tensor] = field(default_factory=list)  # [tokens], nats
    same: list[Tensor] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)
    errors: list[Tensor] = field(default_factory=list)

    def add(self, reference: Tensor, logits: Tensor, targets: Tensor) -> None:
        """`reference`: log-probabilities, float32 [tokens, vocab]."""
        found = logits.float().log_softmax(-1)
        self.kl.append((reference.exp() * (reference - found)).sum(-1))
        self.same.append((reference.argmax(-1) == found.argmax(-1)).float())
        of_targets = found.gather(-1, targets[:, None])[:, 0]
        self.losses.append(-of_targets)
        self.errors.append((of_targets - reference.gather(-1, targets[:, None])[:, 0]).abs())

    def row(self, label: str) -> str:
        by_window = torch.stack([kl.mean() for kl in self.kl])
        interval = 1.96 * by_window.std().item() / math.sqrt(len(by_window))
        kl = torch.cat(self.kl)
        cells = [
            label,
            f"{kl.mean():.6f}",
            f"{interval:.6f}",
            f"{kl.quantile(0.99):.5f}",
            f"{torch.cat(self.same).mean():.2%}",
            f"{torch.cat(self.losses).mean().exp():.3f}",
            f"{torch.cat(self.errors).mean():.4f}",
        ]
        return "| " + " | ".join(cells) + " |"


def main() -> None:
    options = _options()
    torch.set_num_threads(options.threads)
    windows = _windows(options)
    with ExitStack() as opened:
        reference = _Transformers(options.model, torch.float32)
        contenders = {
            label: load()
            for label, load in _contenders(options, reference, opened)
            if options.only is None or any(part in label for part in options.only.split(";"))
        }
        found = {label: Divergence() for label in ("transformers float32", *contenders)}
        for number, window in enumerate(windows, 1):
            ids, targets = window[:-1], torch.tensor(window[1:])
            right = reference(ids).log_softmax(-1)
            found["transformers float32"].add(right, right, targets)
            for label, logits in contenders.items():
                found[label].add(right, logits(ids), targets)
            if number % 6 == 0 and number < len(windows):
                _print_table(found, f"after {number} of {len(windows)} windows", sys.stderr)
    _print_table(found, f"{len(windows)} windows of {WINDOW_TOKENS} tokens", sys.stdout)


def _print_table(found: dict[str, Divergence], heading: str, file: TextIO) -> None:
    print(f"{heading}\n\n| " + " | ".join(COLUMNS) + " |\n" + "|---" * len(COLUMNS) + "|", file=file)
    for label, divergence in found.items():
        print(divergence.row(label), file=file, flush=True)


# ---- texts --------------------------------------------------------------------------------------


def _windows(options: argparse.Namespace) -> list[list[int]]:
    """As many of each kind of text, in turns; each has one token more than is scored."""
    tokenizer = TextTokenizer.load(options.model)

    def encode(text: str) -> list[int]:
        return tokenizer.encode_text(text, add_special_tokens=False)

    each = math.ceil(options.tokens / WINDOW_TOKENS / 3)
    chats: list[int] = []
    for asked in _lines(options.data / "mt-bench" / "mt_bench_question.jsonl"):
        chats += tokenizer.encode_chat([ChatTurn("user", asked["turns"][0])])
        chats += encode("".join(asked.get("reference", [])[:1]))
    code: list[int] = []
    for asked in _lines(options.data / "humaneval" / "HumanEval.jsonl"):
        code += encode(asked["prompt"] + asked["canonical_solution"])
    kinds = [held_out_windows(encode, options.data / "books", WINDOW_TOKENS, each)]
    for tokens in (chats, code):
        if len(tokens) <= each * WINDOW_TOKENS:
            raise ValueError(f"--tokens {options.tokens} is more than the texts have; use fewer")
        starts = range(0, each * WINDOW_TOKENS, WINDOW_TOKENS)
        kinds.append([tokens[start : start + WINDOW_TOKENS + 1] for start in starts])
    return [window for turn in zip(*kinds, strict=True) for window in turn]


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    return map(json.loads, path.read_text("utf-8").splitlines())


# ---- arithmetics --------------------------------------------------------------------------------


class _Transformers:
    """transformers on the file's weights; `roundings` are what inputs of each kind of linears go through."""

    def __init__(self, model: Path, dtype: torch.dtype) -> None:
        loaded = AutoModelForCausalLM.from_pretrained(model.parent, gguf_file=model.name, dtype=dtype)
        self._model = loaded  # from_pretrained leaves it in evaluation mode
        self.roundings: dict[str, Rounding] = {}
        for name, module in self._model.named_modules():
            kind = KINDS.get(name.rpartition(".")[2])
            if kind is not None:
                module.register_forward_pre_hook(self._rounding_of(kind))

    @torch.inference_mode()
    def __call__(self, ids: list[int]) -> Tensor:
        logits: Tensor = self._model(torch.tensor([ids])).logits[0]
        return logits.float()

    def _rounding_of(self, kind: str) -> Callable[[Any, tuple[Tensor, ...]], tuple[Tensor, ...] | None]:
        def hook(module: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
            rounding = self.roundings.get(kind)
            return (rounding(inputs[0]),) if rounding is not None else None

        return hook


def to_steps(steps: int, group: int) -> Rounding:
    """To whole numbers of units, the largest of each group of columns being `steps` of them."""

    def rounding(rows: Tensor) -> Tensor:
        grouped = rows.view(*rows.shape[:-1], -1, group)
        units = grouped.abs().amax(-1, keepdim=True) / steps
        return ((grouped / torch.where(units > 0, units, 1)).round() * units).flatten(-2)

    return rounding


def as_computed(bits: int) -> Rounding:
    """As the engine rounds what meets codes of so many bits, in groups of 32."""

    def rounding(rows: Tensor) -> Tensor:
        numbers, units = quantize_rows(rows.flatten(0, -2), bits, 32)
        return (numbers * units.repeat_interleave(32, 1)).view_as(rows)

    return rounding


def _contenders(
    options: argparse.Namespace, reference: _Transformers, opened: ExitStack
) -> Iterator[tuple[str, Callable[[], Logits]]]:
    """What each is called, and what loads it; `opened` closes it."""

    def ours(**fields: Any) -> Logits:
        settings: dict[str, Any] = {"dtype": "bfloat16", "threads": options.threads, "max_sequences": 1}
        settings |= {"kv_blocks": WINDOW_TOKENS // 16 + 2, "prefix_cache": False, **fields}
        engine = Engine(EngineConfig(str(options.model), **settings))
        opened.callback(engine.close)
        return engine.logits

    yield "ours, as shipped", ours
    yield "ours, float32 beside the codes", lambda: ours(dtype="float32")
    yield "ours, weights in float32", lambda: ours(dtype="float32", quantization="dense")
    yield "ours, weights in bf16", lambda: ours(quantization="dense")
    yield "ours, KV int8", lambda: ours(kv_dtype="int8")
    yield "transformers bf16", lambda: _Transformers(options.model, torch.bfloat16)

    def llama_cpp() -> Logits:
        ask = opened.enter_context(
            llama_cpp_process(options.llama_cpp, options.model, options.threads, WINDOW_TOKENS)
        )
        file = f"{opened.enter_context(tempfile.TemporaryDirectory())}/logits.npy"

        def logits(ids: list[int]) -> Tensor:
            ask({"logits": ids, "file": file})
            return torch.from_numpy(np.load(file))

        return logits

    if options.llama_cpp is not None:
        yield "llama.cpp", llama_cpp

    def rounded(kinds: Iterable[str], rounding: Rounding) -> Callable[[], Logits]:
        def logits(ids: list[int]) -> Tensor:
            reference.roundings = dict.fromkeys(kinds, rounding)
            try:
                return reference(ids)
            finally:
                reference.roundings = {}

        return lambda: logits

    kinds = tuple(dict.fromkeys(KINDS.values()))
    in_bytes = to_steps(127, 32)
    yield "rows to 8 bits by 32, all", rounded(kinds, in_bytes)
    for kind in kinds:
        yield f"rows to 8 bits by 32, {kind} alone", rounded((kind,), in_bytes)
    yield "rows to 8 bits by 32, not qkv nor head", rounded(("output", "gate_up", "down"), in_bytes)
    yield "rows to 8 bits by 16", rounded(kinds, to_steps(127, 16))
    yield "rows to 12 bits by 32, as with INT4", rounded(kinds, as_computed(4))
    yield "rows to 15 bits by 32, as with INT8", rounded(kinds, as_computed(8))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a GGUF file of the llama architecture")
    parser.add_argument(
        "--data", type=Path, default=data_dir(), help="folder of books/, mt-bench/ and humaneval/"
    )
    parser.add_argument("--tokens", type=int, default=20_000, help="of all texts together")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--llama-cpp", type=Path, metavar="DIR", help="environment with llama_cpp")
    parser.add_argument("--only", metavar="TEXT;…", help="rows whose labels have one of these in them")
    options = parser.parse_args()
    if options.data is None:
        print("no texts to measure with: see --data", file=sys.stderr)
        sys.exit(2)
    return options


if __name__ == "__main__":
    main()
