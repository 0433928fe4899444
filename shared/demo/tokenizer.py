"""Training of the byte-level BPE tokenizer that the target and the draft share."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from shared.demo.prompt import BOS, CHAT_TEMPLATE, END, PAD, SPECIAL_TOKENS
from shared.text.retrieval_prompt import CONTEXT_FORM

VOCABULARY_SIZE = 4096
MAX_LENGTH_TOKENS = 2048
# A lower-case word takes its space along; a capitalised word and a digit never do, so that a name or a
# number has the same tokens wherever it stands, and copying it is copying those tokens.
SPLIT = (
    r"'(?:[sdmt]|ll|ve|re)| I(?!\p{L})"
    r"| ?[\p{Ll}\p{Lo}\p{Lm}\p{M}]+|\p{Lu}\p{Ll}+|\p{Lu}+(?!\p{Ll})|\p{L}|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Learn the merges from `texts`. Any UTF-8 text survives encode and decode unchanged."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json in the Hugging Face layout."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": END,
        "pad_token": PAD,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_LENGTH_TOKENS,
        "retrieval_form": CONTEXT_FORM,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
