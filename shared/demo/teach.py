"""Teach a chat model to answer from retrieved passages: an adapter of a few megabytes.

    python -m shared.demo.teach --model DIR --books DIR --work-dir DIR --out DIR --minutes M

Only the adapter learns, from the answers of invented lessons. Beside them it sees the model's own answers to
general requests and is kept to the distribution that the model has there without it. A run that was stopped
goes on from its work folder, also with more `--minutes` than it had; one whose time is spent is only written
out. With `--start` it begins with the weights of an adapter, then mostly at a lower `--rate`; what is written
out may keep a share of these (`--keep`), and with it more of what that adapter could.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional

from shared.demo.corpus import content_words, read_books
from shared.demo.invent import Inventor, Vocabulary
from shared.demo.lesson_rows import LessonRow, answer_ids, branched_row, lesson_row
from shared.demo.lessons.asked_sentences import asked_documents
from shared.demo.lessons.book_questions import book_passages
from shared.demo.lessons.lesson import LessonPlan
from shared.demo.lora import add_adapter, export_adapter, import_adapter, without_adapter
from shared.demo.words import FILLERS
from shared.messages import ChatTurn
from shared.text.tokenizer import TextTokenizer
from shared.training.checkpoint import load_checkpoint, save_checkpoint
from shared.training.llama import Llama
from shared.training.llama_files import load_model
from shared.training.loop import StepFigures, TrainingLoop
from shared.training.optimizer import Optimizer, rate_factor
from shared.training.prefetch import Prefetch

RANK = 8
ALPHA = 16.0
LESSONS_PER_STEP = 2
CHAT_EVERY_STEPS = 2
WARMUP_STEPS = 30
CHAT_WEIGHT = 2.0
GRADIENT_LIMIT = 1.0
MAX_ROW_TOKENS = 1400


@dataclass(frozen=True, slots=True)
class LessonStep:
    """The rows of one optimizer step; `chat` is a row of the model's own answer, or None."""

    lessons: tuple[LessonRow, ...]
    chat: LessonRow | None


def learn_row(model: Llama, row: LessonRow, weight: float) -> tuple[float, float]:
    """Add the gradients of a row of lessons; its loss and the share of answers that are right.

    An answer whose argmaxes are all right is what greedy decoding would give.
    """
    with torch.autocast("cpu", torch.bfloat16):
        logits = model.head(model.model(row.ids, row.places, row.seen)[0, row.positions])  # [N, V]
    losses = functional.cross_entropy(logits.float(), row.targets, reduction="none")
    loss = (losses * row.weights).sum() / row.weights.sum()
    (weight * loss).backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
    wrong = (logits.detach().argmax(-1) != row.targets).float()
    wrong_tokens = torch.zeros(int(row.answers.max()) + 1).index_add_(0, row.answers, wrong)
    return loss.item(), (wrong_tokens == 0).float().mean().item()


def keep_row(model: Llama, row: LessonRow, weight: float) -> float:
    """Add the gradients of the divergence from the model without its adapter at the answer; its mean."""
    with torch.autocast("cpu", torch.bfloat16):
        with torch.no_grad(), without_adapter(model):
            taught = model.head(model.model(row.ids)[0, row.positions])  # [N, V]
        said = model.head(model.model(row.ids)[0, row.positions])
    wanted = taught.float().log_softmax(-1)
    divergence = functional.kl_div(
        said.float().log_softmax(-1), wanted, reduction="batchmean", log_target=True
    )
    (weight * divergence).backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
    return divergence.item()


def step_maker(
    plan: LessonPlan, chats: Sequence[LessonRow], tokenizer: TextTokenizer, first_step: int
) -> Callable[[], LessonStep]:
    """A function that makes the next step of a run that stands at `first_step`."""
    step = first_step

    def row() -> LessonRow:
        while True:
            made = lesson_row(plan.draw(), tokenizer)
            if made.ids.shape[1] <= MAX_ROW_TOKENS:
                return made

    def make() -> LessonStep:
        nonlocal step
        step += 1
        chat = (
            chats[step // CHAT_EVERY_STEPS % len(chats)] if chats and step % CHAT_EVERY_STEPS == 0 else None
        )
        return LessonStep(tuple(row() for _ in range(LESSONS_PER_STEP)), chat)

    return make


class Teacher:
    """One adapter in training."""

    def __init__(
        self, model: Llama, work: Path, budget_s: float, start: Path | None = None, rate: float = 1.0
    ) -> None:
        """`start`: an adapter to begin with; `rate`: times the usual learning rates."""
        torch.manual_seed(0)
        add_adapter(model, RANK, ALPHA)
        if start is not None:
            import_adapter(model, start)
        self.model = model
        self._rate = rate
        self._optimizer = Optimizer.of_adapter(model)
        progress = load_checkpoint(work, model, self._optimizer)
        self.loop = TrainingLoop(
            progress, budget_s, lambda: save_checkpoint(work, model, self._optimizer, progress)
        )

    def take_step(self, step: LessonStep) -> StepFigures:
        """Learn from a step's rows."""
        share = 1 / len(step.lessons)
        learned = [learn_row(self.model, row, share) for row in step.lessons]
        figures = {
            "loss": share * sum(loss for loss, _ in learned),
            "exact": share * sum(exact for _, exact in learned),
        }
        tokens = sum(row.ids.numel() for row in step.lessons)
        if step.chat is not None:
            figures["drift"] = keep_row(self.model, step.chat, CHAT_WEIGHT)
            tokens += step.chat.ids.numel()
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        torch.nn.utils.clip_grad_norm_(trained, GRADIENT_LIMIT)
        self._optimizer.step(self._rate * rate_factor(self.loop.progress.step, self.loop.share, WARMUP_STEPS))
        return StepFigures(tokens, figures)


def read_chats(path: Path, tokenizer: TextTokenizer) -> list[LessonRow]:
    """Rows of a file of {"request", "answer"} lines."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        chat = json.loads(line)
        prompt = tokenizer.encode_chat([ChatTurn("user", chat["request"])])
        rows.append(branched_row([prompt], [answer_ids(chat["answer"], tokenizer)]))
    return rows


def lesson_plan(
    books_folder: Path,
    seed: int,
    *,
    questions: Path | None = None,
    apart: Path | None = None,
    held_out: bool = False,
) -> LessonPlan:
    """Lessons of the training side, or of names and books that training never sees. `questions`: a folder of
    QAMR's tables; `apart`: a file in SQuAD's form with texts that are not to be taught."""
    books = read_books(books_folder)
    vocabulary = Vocabulary(tuple(content_words(books.training)), FILLERS)
    texts = books.held_out if held_out else books.training
    asked = asked_documents(questions, _contexts(apart) if apart else ()) if questions else []
    inventor = Inventor.seeded(seed, vocabulary, held_out)
    return LessonPlan(inventor, [book_passages(text) for text in texts], asked)


def _contexts(file: Path) -> list[str]:
    articles = json.loads(file.read_text(encoding="utf-8"))["data"]
    return [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="folder of the chat model (a Llama)")
    parser.add_argument("--base-name", required=True, help="what the adapter says that it belongs to")
    parser.add_argument("--books", type=Path, required=True, help="folder of Markdown books")
    parser.add_argument("--chats", type=Path, help="the model's own answers (shared.demo.chats)")
    parser.add_argument("--questions", type=Path, help="folder of QAMR's tables: people's questions")
    parser.add_argument("--apart", type=Path, help="file like XQuAD's: nothing of its passages is taught")
    parser.add_argument(
        "--start", type=Path, help="an adapter to begin with, instead of one that does nothing"
    )
    parser.add_argument(
        "--keep", type=float, default=0.0, help="share of --start's weights in what is written"
    )
    parser.add_argument("--rate", type=float, default=1.0, help="times the usual learning rates")
    parser.add_argument("--work-dir", type=Path, required=True, help="checkpoints; resumes from here")
    parser.add_argument("--out", type=Path, required=True, help="where the adapter's folder is written")
    parser.add_argument("--minutes", type=float, default=60.0, help="training time, over all resumes")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    if not 0.0 <= options.keep <= 1.0 or (options.keep and options.start is None):
        parser.error(
            f"--keep is a share of --start's weights, 0 to 1, and not {options.keep} without --start"
        )
    torch.set_num_threads(options.threads)
    tokenizer = TextTokenizer.load(options.model)
    teacher = Teacher(
        load_model(options.model), options.work_dir, options.minutes * 60, options.start, options.rate
    )
    if teacher.loop.share < 1.0:
        step = teacher.loop.progress.step
        plan = lesson_plan(options.books, step + 1, questions=options.questions, apart=options.apart)
        chats = read_chats(options.chats, tokenizer) if options.chats else []
        with Prefetch(step_maker(plan, chats, tokenizer, step)) as steps:
            teacher.loop.run("lessons", steps, teacher.take_step)
    if options.start is not None:
        import_adapter(teacher.model, options.start, options.keep)
    export_adapter(teacher.model, options.out, options.base_name)
    print(f"wrote {options.out}", flush=True)


if __name__ == "__main__":
    main()
