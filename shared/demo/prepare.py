"""The work folder: tokenizer, token arrays and word lists, made once from the books and then reused."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from shared.demo.corpus import book_tokens, content_words, pieces, read_books, sentences
from shared.demo.examples import make_example
from shared.demo.invent import Inventor, Vocabulary
from shared.demo.tokenizer import save_tokenizer, train_tokenizer

FILLER_SENTENCES = 60_000
TOKENIZER_BOOK_PIECES = 90
TOKENIZER_EXAMPLES = 3000


@dataclass(frozen=True, slots=True)
class Material:
    """Everything that training and evaluation read."""

    tokenizer: Tokenizer
    training_tokens: NDArray[np.uint16]
    held_out_tokens: NDArray[np.uint16]
    held_out_bytes: int
    training_vocabulary: Vocabulary
    held_out_vocabulary: Vocabulary


def prepare(books_folder: Path, work: Path) -> Material:
    """Load the material from `work`, making first what is not there yet."""
    if not (work / "words.json").exists():
        _make(books_folder, work)
    lists = json.loads((work / "words.json").read_text(encoding="utf-8"))
    nouns = tuple(lists["nouns"])
    return Material(
        tokenizer=Tokenizer.from_file(str(work / "tokenizer" / "tokenizer.json")),
        training_tokens=np.load(work / "training.npy", mmap_mode="r", allow_pickle=False),
        held_out_tokens=np.load(work / "held_out.npy", mmap_mode="r", allow_pickle=False),
        held_out_bytes=lists["held_out_bytes"],
        training_vocabulary=Vocabulary(nouns, tuple(lists["training_sentences"])),
        held_out_vocabulary=Vocabulary(nouns, tuple(lists["held_out_sentences"])),
    )


def _make(books_folder: Path, work: Path) -> None:
    books = read_books(books_folder)
    random = Random(0)  # noqa: S311 - draws training data, guards no secret
    nouns = content_words(books.training)
    training_sentences = sentences(books.training, FILLER_SENTENCES, seed=1)
    inventor = Inventor(random, Vocabulary(tuple(nouns), tuple(training_sentences)))
    sample = random.sample(
        [piece for text in books.training for piece in pieces(text)], TOKENIZER_BOOK_PIECES
    )
    sample += [make_example(inventor, 6, 0).prompt for _ in range(TOKENIZER_EXAMPLES)]
    print("training the tokenizer", flush=True)
    tokenizer = train_tokenizer(sample)
    save_tokenizer(tokenizer, work / "tokenizer")
    print("tokenizing the books", flush=True)
    np.save(work / "training.npy", book_tokens(books.training, tokenizer), allow_pickle=False)
    np.save(work / "held_out.npy", book_tokens(books.held_out, tokenizer), allow_pickle=False)
    lists = {
        "nouns": nouns,
        "training_sentences": training_sentences,
        "held_out_sentences": sentences(books.held_out, FILLER_SENTENCES // 10, seed=2),
        "held_out_bytes": sum(len(text.encode()) for text in books.held_out),
    }
    (work / "words.json").write_text(json.dumps(lists), encoding="utf-8")
