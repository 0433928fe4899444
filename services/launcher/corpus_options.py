"""The corpora that the command line names, checked before anything is started."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from shared.config.fields import LIST_MARK
from shared.config.named_corpus import read_named_corpora, split_corpus
from shared.errors import InvalidRequest
from shared.retrieval.documents.corpus import is_there

NONE = "none"


def said_corpora(parser: argparse.ArgumentParser, texts: Sequence[str] | None) -> tuple[str, ...] | None:
    """Each with its path as an absolute one."""
    if texts is None:
        return None
    if NONE in texts:
        if len(texts) > 1:
            parser.error("--corpus none leaves nothing to search: take it, or the others, away")
        return ()
    try:
        corpora = read_named_corpora(texts)
    except InvalidRequest as error:
        parser.error(f"--corpus: {error.message}")
    for text, corpus in zip(texts, corpora, strict=True):
        if LIST_MARK in text:
            parser.error(f"--corpus {text} has a comma: say it in the list `corpus` of penstock.toml")
        if not is_there(corpus.path):
            parser.error(f"--corpus {text}: there is no folder or file {corpus.path}")
    return tuple(split_corpus(text)[0] + corpus.path for text, corpus in zip(texts, corpora, strict=True))
