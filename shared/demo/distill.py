"""Distil the demo draft: `python -m shared.demo.distill --books DIR --target DIR --out DIR --work-dir DIR`.

The draft is one layer as wide as the target. It starts from the target's embedding and learns the target's
whole next-token distribution, on books and on questions. A draft that is already in --out is trained further.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shared.demo.batches import ExamplePacker, Prefetch, TrainingBatch, book_batch
from shared.demo.checkpoint import TrainingProgress, export_model, load_model
from shared.demo.invent import Inventor
from shared.demo.llama import Llama, LlamaShape
from shared.demo.loop import StepFigures, TrainingLoop
from shared.demo.optimizer import Optimizer, rate_factor
from shared.demo.prepare import Material, prepare

DRAFT = LlamaShape(num_hidden_layers=1, intermediate_size=768)
BOOK_ROWS = 3
QUESTION_ROWS = 1
LENGTH_TOKENS = 1024
# The target's distribution is sharpened a little: drafts are accepted for its first choice, not for its tail.
SHARPNESS = 1.5
MAX_FACTS = 4
MAX_FILLERS = 4


def new_draft(target: Llama) -> Llama:
    """An untrained draft with the target's embedding and last norm."""
    draft = Llama(DRAFT)
    draft.model.embed_tokens.load_state_dict(target.model.embed_tokens.state_dict())
    draft.model.norm.load_state_dict(target.model.norm.state_dict())
    return draft


def distil_step(target: Llama, draft: Llama, ids: Tensor) -> float:
    """Add the gradients of the mean KL(sharpened target || draft) over all positions of [B, T] ids.

    Returns the share of positions at which both would choose the same token. The gradient of the divergence
    at the draft's logits is the difference of the two distributions, so it is handed to backward as it is:
    the logits are the largest tensors here, and autograd would keep several copies of them.
    """
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        taught = target(ids).flatten(0, 1)  # [N, V]
    with torch.autocast("cpu", torch.bfloat16):
        said = draft(ids).flatten(0, 1)
    with torch.no_grad():
        wanted = (SHARPNESS * taught.float()).softmax(-1)
        gradient = said.float().softmax(-1).sub_(wanted).div_(len(said))
        agreed: float = (said.argmax(-1) == taught.argmax(-1)).float().mean().item()
    said.backward(gradient.to(said.dtype))
    return agreed


def distil(target: Llama, draft: Llama, material: Material, budget_s: float, seed: int) -> None:
    """Train `draft` for `budget_s` seconds on the batches of `seed`."""
    optimizer = Optimizer.of_model(draft)
    random = np.random.default_rng(seed)
    inventor = Inventor.seeded(seed, material.training_vocabulary)
    packer = ExamplePacker(material.tokenizer, inventor, MAX_FACTS, MAX_FILLERS)

    def make() -> tuple[TrainingBatch, TrainingBatch]:
        return (
            book_batch(material.training_tokens, BOOK_ROWS, LENGTH_TOKENS, random),
            packer.batch(QUESTION_ROWS, LENGTH_TOKENS),
        )

    loop = TrainingLoop(TrainingProgress(), budget_s, lambda: None)

    def take_step(step: tuple[TrainingBatch, TrainingBatch]) -> StepFigures:
        books, questions = step
        ids = torch.cat((books.ids, questions.ids))
        agreed = distil_step(target, draft, ids)
        optimizer.step(rate_factor(loop.progress.step, loop.share))
        return StepFigures(ids.numel(), {"agreement": agreed})

    with Prefetch(make) as batches:
        loop.run("draft", batches, take_step)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--books", type=Path, required=True, help="folder of Markdown books")
    parser.add_argument("--target", type=Path, required=True, help="the trained target's folder")
    parser.add_argument("--out", type=Path, required=True, help="where the draft's folder is written")
    parser.add_argument("--work-dir", type=Path, required=True, help="token arrays are kept here")
    parser.add_argument("--minutes", type=float, default=12.0)
    options = parser.parse_args()
    material = prepare(options.books, options.work_dir)
    target = load_model(options.target)
    torch.manual_seed(0)
    resumed = (options.out / "config.json").exists()
    draft = load_model(options.out) if resumed else new_draft(target)
    distil(target, draft, material, options.minutes * 60, seed=int(time.time()) if resumed else 0)
    export_model(draft, options.out)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (options.out / name).write_bytes((options.target / name).read_bytes())
    print(f"wrote {options.out}", flush=True)


if __name__ == "__main__":
    main()
