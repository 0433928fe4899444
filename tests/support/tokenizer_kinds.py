"""Tokenizers of every kind that models use, small ones made here and real ones where the data is."""

from __future__ import annotations

import json
import lzma
import tempfile
from functools import cache
from pathlib import Path
from string import ascii_lowercase

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from shared.text.tokenizer import TextTokenizer
from tests.support.data import data_dir

LANGUAGES = ("en", "de", "zh", "ar", "hi", "th", "ru")
SAMPLES = (
    "Quiet water runs deep, and it isn't late .",
    "Über größere Straßen fährt man früh.",
    "北京的春天很美。",
    "السماء زرقاء اليوم.",
    "आज आसमान नीला है।",
    "วันนี้ท้องฟ้าเป็นสีฟ้า",
    "Сегодня небо синее.",
    "🙂🚀 👩‍👩‍👧‍👦 🇺🇳 ok",
)
SPECIAL = ["<unk>", "<s>", "</s>"]
WORDS = ["▁", "▁the", "▁water", "the", "er", ".", " ", ",", "n't", "▁▁", "<0x+1>", "<0xZZ>", *ascii_lowercase]
PIECES = [
    "hello",
    "##lo",
    "##ing",
    "water",
    ".",
    "!",
    "n't",
    "do",
    "'m",
    "##s",
    ",",
    "we",
    "</w>",
    "end</w>",
    "a</w>b",
]

MADE = (
    "byte_level",
    "byte_fallback",
    "metaspace",
    "word_piece",
    "bpe_suffix",
    "no_decoder",
    "strip",
    "collected",
    "ctc",
)
REAL = ("gpt2", "qwen2", "stories260k")
BYTES = ("byte_level", "byte_fallback", "strip", "collected", *REAL)
"""Kinds that have a token for every byte and join bytes to characters."""
BYTE_LEVEL = ("byte_level", "gpt2", "qwen2")


@cache
def library_tokenizer(kind: str) -> Tokenizer:
    """The plain `tokenizers` object, which decodes all at once. Skips where its data is absent."""
    if kind in REAL:
        return Tokenizer.from_str(real_json(kind))
    if kind == "byte_level":
        return _byte_level()
    tokenizer = _byte_fallback() if kind in ("byte_fallback", "metaspace", "strip", "collected") else _words()
    tokenizer.decoder = {
        "byte_fallback": _sequence(
            decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
        ),
        "metaspace": decoders.Metaspace(),
        "word_piece": decoders.WordPiece(cleanup=True),
        "bpe_suffix": decoders.BPEDecoder(),
        "no_decoder": None,
        "strip": _sequence(decoders.Strip("▁", 1, 0), decoders.ByteFallback()),
        "collected": _sequence(decoders.ByteFallback(), decoders.Fuse(), decoders.Replace(Regex("▁+"), " ")),
        "ctc": decoders.CTC(pad_token="<s>"),
    }[kind]
    return tokenizer


@cache
def text_tokenizer(kind: str) -> TextTokenizer:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "tokenizer.json")
        if kind in REAL:
            file.write_text(real_json(kind))
        else:
            library_tokenizer(kind).save(str(file))
        return TextTokenizer.load(Path(folder))


def byte_id(kind: str, byte: int) -> int:
    """The token that is this one byte."""
    if kind in BYTE_LEVEL:
        alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        token = alphabet.pre_tokenize_str(chr(byte))[0][0] if byte < 128 else _byte_letters()[byte]
    else:
        token = f"<0x{byte:02X}>"
    return id_of(kind, token)


def id_of(kind: str, token: str) -> int:
    token_id = library_tokenizer(kind).token_to_id(token)
    assert token_id is not None
    return int(token_id)


def passages(language: str, count: int) -> list[str]:
    """Texts of a language: real ones where the data is, else a sentence."""
    data = data_dir()
    if data is None:
        return [SAMPLES[LANGUAGES.index(language)]]
    articles = json.loads((data / "xquad" / f"xquad.{language}.json").read_text())["data"]
    texts = [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]
    return texts[:: len(texts) // count][:count]


def real_json(kind: str) -> str:
    data = data_dir()
    if data is None:
        pytest.skip("the shared data is not here")
    if kind == "qwen2":
        return lzma.decompress((data / "tokenizers" / "qwen2.json.xz").read_bytes()).decode()
    file = data / "tokenizers" / "gpt2.json" if kind == "gpt2" else data / "stories260k" / "tokenizer.json"
    return file.read_text()


@cache
def _byte_letters() -> dict[int, str]:
    """byte → its letter, found by writing every character of two bytes."""
    alphabet = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    letters: dict[int, str] = {}
    for code_point in (*range(0x80, 0x800), *range(0x800, 0x10000, 0x800), *range(0x10000, 0x110000, 0x8000)):
        if not 0xD800 <= code_point < 0xE000:
            character = chr(code_point)
            letters.update(zip(character.encode(), alphabet.pre_tokenize_str(character)[0][0], strict=True))
    # Bytes that no character has; the alphabet writes printable Latin-1 as itself.
    return letters | {byte: chr(byte) for byte in (0xC0, 0xC1, *range(0xF5, 0x100))}


def _sequence(*stages: decoders.Decoder) -> decoders.Decoder:
    return decoders.Sequence(list(stages))


def _byte_level() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(SAMPLES, trainer)
    # Added tokens are not written in the alphabet of bytes.
    tokenizer.add_tokens([AddedToken("<a b>", normalized=False), AddedToken("東!", normalized=False)])
    return tokenizer


def _byte_fallback() -> Tokenizer:
    tokens = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def _words() -> Tokenizer:
    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *PIECES])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer
