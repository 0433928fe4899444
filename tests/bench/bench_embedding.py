"""How fast texts become vectors, and what each arithmetic costs in what is found.

    python -m tests.bench.bench_embedding --books DIR --xquad DIR [--threads 2] [--peers]

Passages of books through the encoder in float32, bfloat16 and int8, on the kernels and in torch, by turns;
the time of one question; nDCG@10 of XQuAD's English questions among its passages, each embedded whole. With
`--peers` sentence-transformers and onnxruntime too, where these and onnx, which writes the file that it
reads, are installed. Beside the clock stands the CPU time, which says more where others keep cores busy.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from shared.engine.native.encoder import Arithmetic
from shared.retrieval.documents.passages import split_passages
from shared.retrieval.encoders.bert import hidden_states, read_encoder
from shared.retrieval.encoders.embedder import MAX_TOKENS
from shared.retrieval.encoders.model_files import CONFIG, find_model_files
from shared.retrieval.encoders.text_encoder import TextEncoder
from shared.retrieval.encoders.vectors import Vectors
from tests.bench.ranking_scores import ranking_scores
from tests.bench.retrieval_sets import RetrievalSet, xquad_set

QUESTION = "Which service does a request come in through?"
QUESTION_RUNS = 40
PEER_BATCH = 32
ARITHMETICS: tuple[Arithmetic, ...] = ("float32", "bfloat16", "int8")

Embed = Callable[[Sequence[str]], Vectors]


def encoders(threads: int) -> dict[str, Embed]:
    """Ours, by name."""
    files = find_model_files()
    weights = read_encoder(CONFIG, load_file(str(files.weights)))
    tokenizer = _tokenizer()

    def embed(encoder: TextEncoder, texts: Sequence[str]) -> Vectors:
        return _unit(encoder.encode([each.ids for each in tokenizer.encode_batch(list(texts))], "mean"))

    made: dict[str, Embed] = {}
    for native in (True, False):
        for arithmetic in ARITHMETICS[: 3 if native else 2]:
            encoder = TextEncoder(weights, arithmetic, threads=threads, native=native)
            made[f"{'kernels' if native else 'torch'} {arithmetic}"] = partial(embed, encoder)
    return made


def peers(threads: int, folder: Path) -> dict[str, Embed]:
    """sentence-transformers and onnxruntime with the same weights."""
    import onnxruntime  # noqa: PLC0415 - only where peers are asked for
    from onnxruntime.quantization import QuantType, quantize_dynamic  # noqa: PLC0415
    from sentence_transformers import SentenceTransformer  # noqa: PLC0415

    model = SentenceTransformer(str(find_model_files().weights.parent), device="cpu")
    model.max_seq_length = MAX_TOKENS
    path = folder / "encoder.onnx"
    _export(path)
    quantize_dynamic(str(path), str(folder / "int8.onnx"), weight_type=QuantType.QInt8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads

    def transformers(texts: Sequence[str]) -> Vectors:
        return np.asarray(model.encode(list(texts), batch_size=PEER_BATCH, normalize_embeddings=True))

    made: dict[str, Embed] = {"sentence-transformers": transformers}
    for name in ("encoder", "int8"):
        session = onnxruntime.InferenceSession(str(folder / f"{name}.onnx"), options)
        made[f"onnxruntime {'float32' if name == 'encoder' else 'int8'}"] = partial(_run_onnx, session)
    return made


def _export(path: Path) -> None:
    weights = read_encoder(CONFIG, load_file(str(find_model_files().weights)))

    class Encoder(torch.nn.Module):
        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return hidden_states(weights, ids, mask, torch.zeros_like(ids))

    given = (torch.ones(2, 8, dtype=torch.long), torch.ones(2, 8, dtype=torch.bool))
    axes = {name: {0: "texts", 1: "tokens"} for name in ("ids", "mask", "states")}
    torch.onnx.export(
        Encoder(),
        given,
        str(path),
        input_names=["ids", "mask"],
        output_names=["states"],
        dynamic_axes=axes,
        dynamo=False,
    )


def _run_onnx(session: Any, texts: Sequence[str]) -> Vectors:
    encoded = [each.ids for each in _tokenizer().encode_batch(list(texts))]
    order = sorted(range(len(encoded)), key=lambda row: len(encoded[row]))
    out = np.empty((len(texts), CONFIG["hidden_size"]), dtype=np.float32)
    for at in range(0, len(order), PEER_BATCH):
        rows = order[at : at + PEER_BATCH]
        length = max(len(encoded[row]) for row in rows)
        ids = np.array([encoded[row] + [0] * (length - len(encoded[row])) for row in rows], dtype=np.int64)
        mask = np.array([[place < len(encoded[row]) for place in range(length)] for row in rows])
        states = session.run(None, {"ids": ids, "mask": mask})[0]
        out[rows] = (states * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
    return _unit(out)


def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(find_model_files().tokenizer))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    return tokenizer


def _unit(vectors: Vectors) -> Vectors:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


def book_passages(folder: Path, count: int) -> list[str]:
    """From the middles of books, evenly."""
    books = sorted(folder.rglob("*.md"))
    each = -(-count // min(len(books), 40))
    passages: list[str] = []
    for book in books[:: max(1, len(books) // 40)]:
        found = split_passages(book.read_text(encoding="utf-8"), markdown=True)
        middle = len(found) // 2
        passages += [passage.embedded_text for passage in found[middle : middle + each]]
    return passages[:count]


def _ndcg(embed: Embed, asked: RetrievalSet) -> float:
    names = list(asked.documents)
    similar = embed(asked.questions) @ embed([asked.documents[name] for name in names]).T
    best = np.argsort(-similar, axis=1)[:, :10]
    return ranking_scores([[names[row] for row in rows] for rows in best], asked.gains).ndcg


def _seconds(work: Callable[[], object]) -> tuple[float, float]:
    """By the clock, and of the CPU."""
    begun, begun_cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - begun, time.process_time() - begun_cpu


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--books", type=Path, required=True, help="folder of Markdown")
    parser.add_argument("--xquad", type=Path, required=True, help="folder of XQuAD's files")
    parser.add_argument("--passages", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="of ours those with this in their name")
    parser.add_argument("--no-quality", action="store_true")
    parser.add_argument("--peers", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    passages = book_passages(options.books, options.passages)
    tokens = sum(len(each.ids) for each in _tokenizer().encode_batch(passages))
    print(f"{len(passages)} passages of {tokens / len(passages):.1f} tokens, {options.threads} threads")
    with tempfile.TemporaryDirectory(prefix="penstock-embedding-") as folder:
        compared = {name: each for name, each in encoders(options.threads).items() if options.only in name}
        compared |= peers(options.threads, Path(folder)) if options.peers else {}
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in compared}
        asked: dict[str, list[tuple[float, float]]] = {name: [] for name in compared}
        for _ in range(options.rounds):
            for name, embed in compared.items():
                times[name].append(_seconds(partial(embed, passages)))
                asked[name] += [_seconds(partial(embed, [QUESTION])) for _ in range(QUESTION_RUNS)]
        english = xquad_set(options.xquad, "en")
        for name, embed in compared.items():
            taken_s, cpu_s = (statistics.median(each) for each in zip(*times[name], strict=True))
            asked_s, asked_cpu_s = (statistics.median(each) for each in zip(*asked[name], strict=True))
            quality = "" if options.no_quality else f"  nDCG@10 {_ndcg(embed, english):.4f}"
            print(
                f"{name:24} {len(passages) / taken_s:7.1f} passages/s,"
                f" {len(passages) / cpu_s:6.1f} a CPU second"
                f" ({tokens / cpu_s / 1000:5.1f} k tokens); question {1000 * asked_s:6.2f} ms,"
                f" CPU {1000 * asked_cpu_s:5.2f}{quality}"
            )


if __name__ == "__main__":
    main()
