"""Tokenizers in the Hugging Face layout: one file is changed, then text and chats are encoded and decoded."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

from shared.messages import ChatTurn
from shared.text.tokenizer import TextTokenizer
from tests.fuzz.mutation import mutated_bytes, mutated_json, mutated_text
from tests.fuzz.target import Target, in_folder, put_named_file

TEMPLATE = "{% for message in messages %}<s>{{ message['content'] }}</s>{% endfor %}"
CONFIG: dict[str, Any] = {
    "bos_token": "<s>",
    "eos_token": {"content": "</s>", "lstrip": False},
    "chat_template": [{"name": "default", "template": TEMPLATE}],
    "retrieval_form": "context",
}
TEXTS = ("ab b", "<s>a</s>", "\U0001f600 é\0", "")
CONTROLS = ("h", "ab", " ", "é", "<", "hello", "s>h", "", "\ufdd0", "aa")
NAMES = (
    "tokenizer.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.json",
    "chat_template.jinja",
    "config.json",
)


@cache
def spec() -> dict[str, Any]:
    """Return a byte-level tokenizer with two merges and what such files may hold beside them."""
    alphabet = [chr(each) for each in (*range(33, 127), *range(161, 173), *range(174, 256), *range(256, 324))]
    tokens = [*alphabet, "ab", "Ġb"]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0},
        "padding": None,
        "added_tokens": [
            {"id": len(tokens) + number, "content": content, **special}
            for number, content in enumerate(("<s>", "</s>"))
        ],
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "NFC"}, {"type": "Prepend", "prepend": "▁"}],
        },
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {
                    "type": "Split",
                    "pattern": {"Regex": r"\p{N}{1,3}| ?\p{L}+|\s+"},
                    "behavior": "Isolated",
                    "invert": False,
                },
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [len(tokens)], "tokens": ["<s>"]}},
        },
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
                {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            ],
        },
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": [["a", "b"], ["Ġ", "b"]],
        },
    }


def make(rng: random.Random) -> bytes:
    """The name of a file, a line end, and what it holds."""
    name = rng.choice(NAMES)
    match name:
        case "tokenizer.json":
            data = changed_spec(rng)
        case "chat_template.jinja":
            data = mutated_bytes(mutated_text(TEMPLATE, rng).encode("utf-8", "surrogatepass"), rng)
        case "special_tokens_map.json" | "chat_template.json":
            data = mutated_json({**CONFIG, "unk_token": "a"}, rng)
        case "config.json":
            data = mutated_json({"vocab_size": 400}, rng)
        case _:
            data = mutated_json(CONFIG, rng)
    return name.encode() + b"\n" + data


def changed_spec(rng: random.Random) -> bytes:
    """Change one part, since nearly all values of a whole file are those of its vocabulary."""
    part = rng.choice([each for each in spec() if each != "version"])
    whole = json.dumps(spec())
    place = json.dumps({part: spec()[part]})[1:-1]
    if rng.random() < 0.2:  # control tokens of any name
        return whole.replace('"content": "</s>"', f'"content": {json.dumps(rng.choice(CONTROLS))}').encode()
    return whole.encode().replace(place.encode(), mutated_json({part: spec()[part]}, rng)[1:-1])


def prepare(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(spec()))
    (folder / "tokenizer_config.json").write_text(json.dumps(CONFIG))
    (folder / "config.json").write_text('{"vocab_size": 400}')


def run(folder: Path, data: bytes) -> None:
    if not put_named_file(folder, data, NAMES, prepare):
        return
    tokenizer = TextTokenizer.load(folder)
    for text in TEXTS:
        ids = tokenizer.encode_text(text)
        tokenizer.decode(ids)
        decoder = tokenizer.decoder(ids[:1])
        decoder.push(ids)
        decoder.finish()
    tokenizer.token_bytes(0)
    if tokenizer.has_chat_template:
        tokenizer.encode_chat([ChatTurn("user", "<s>hello"), ChatTurn("assistant", "")])


TARGET = Target("tokenizer_folder", make, in_folder(run))
