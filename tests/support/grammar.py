"""A random model with a tokenizer of its own: single printable characters and a few longer tokens."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.support.engine import save_random_model

VOCAB = 128  # of the model; the tokenizer has fewer
SPECIAL = ("<unk>", "<s>", "</s>")
EOS = 2
MERGES = (("t", "r"), ("u", "e"), ("tr", "ue"), ("o", "k"), ('"', ":"), ("1", "2"))


def save_tokenizer(folder: Path) -> Tokenizer:
    characters = ["Ġ" if code == 32 else chr(code) for code in range(32, 127)] + ["Ċ"]
    tokens = [*SPECIAL, *characters, *(left + right for left, right in MERGES)]
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=list(MERGES), unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def id_of(token: str) -> int:
    """The id of a single character or a special token."""
    return SPECIAL.index(token) if token in SPECIAL else 3 + ord(token) - 32


def save_model_with_tokenizer(folder: Path) -> Path:
    save_random_model(folder, vocab_size=VOCAB)
    save_tokenizer(folder)
    return folder
