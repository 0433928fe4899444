"""Tokenizers and chat templates of GGUF files: the same ids and texts as the tokenizers they were made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from tokenizers import Tokenizer, pre_tokenizers

from shared.engine.loading.gguf.pre_tokenizers import PRE_TOKENIZERS
from shared.engine.loading.gguf.tokenizer_spec import MAX_TOKEN_CHARS
from shared.errors import InvalidRequest
from shared.messages import ChatTurn
from shared.text.model_source import resolve_model
from shared.text.tokenizer import TextTokenizer
from tests.support.data import data_dir
from tests.support.gguf_files import add_value
from tests.support.gguf_tokenizers import byte_level_metadata, sentencepiece_metadata
from tests.support.tokenizer_kinds import SAMPLES, real_json

SEPARATOR = "\n__ggml_vocab_test__\n"
PRE_NAMES = {"gpt2": "gpt-2", "qwen2": "qwen2"}


def write(file: Path, metadata: dict[str, Any]) -> Path:
    """A file with metadata alone."""
    writer = GGUFWriter(file, "llama")
    for key, value in metadata.items():
        add_value(writer, key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return file


def load(folder: Path, **others: Any) -> TextTokenizer:
    return TextTokenizer.load(write(folder / "model.gguf", sentencepiece_metadata(**others)))


@pytest.fixture(scope="module", params=PRE_NAMES)
def real(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, TextTokenizer]:
    """(kind, its tokenizer from a file)"""
    metadata = byte_level_metadata(real_json(request.param), PRE_NAMES[request.param])
    file = write(tmp_path_factory.mktemp("real") / "model.gguf", metadata)
    return request.param, TextTokenizer.load(file)


@pytest.mark.thorough(but="gpt2")
def test_a_real_byte_level_tokenizer_gives_the_published_ids(real: tuple[str, TextTokenizer]) -> None:
    kind, tokenizer = real
    data = data_dir()
    assert data is not None
    name = data / "tokenizer-vectors" / f"ggml-vocab-{PRE_NAMES[kind]}.gguf"
    texts = Path(f"{name}.inp").read_text("utf-8").removesuffix(SEPARATOR).split(SEPARATOR)
    lines = Path(f"{name}.out").read_text("utf-8").splitlines()
    for sample, line in zip(texts, lines, strict=True):
        assert tokenizer.encode_text(sample) == [int(each) for each in line.split()]


@pytest.mark.thorough(but="gpt2")
def test_texts_in_many_languages_become_the_ids_of_the_models_own_tokenizer(
    real: tuple[str, TextTokenizer],
) -> None:
    kind, ours = real
    theirs = Tokenizer.from_str(real_json(kind))
    for sample in (*SAMPLES, "A\u030angstro\u0308m  12345\n\n\tend ", "<|endoftext|>x"):
        ids = ours.encode_text(sample)
        assert ids == theirs.encode(sample).ids
        assert ours.decode(ids) == theirs.decode(ids)


def test_a_trained_sentencepiece_tokenizer_gives_the_ids_of_its_own_file(tmp_path: Path) -> None:
    stated = json.loads(real_json("stories260k"))
    vocabulary = stated["model"]["vocab"]
    tokens = sorted(vocabulary, key=lambda token: int(vocabulary[token]))
    ranks = {left + right: -float(rank) for rank, (left, right) in reversed(_merges(stated))}
    kinds = [2, 3, 3] + [6 if token.startswith("<0x") else 1 for token in tokens[3:]]
    scores = [ranks.get(token, -1e6) for token in tokens]
    ours = load(tmp_path, **{"ggml.tokens": tokens, "ggml.token_type": kinds, "ggml.scores": scores})
    theirs = Tokenizer.from_str(json.dumps(stated))
    for sample in (
        *SAMPLES,
        "Once upon a time, there was a little girl named Lily.\n  She  loved 12 apples.",
    ):
        assert ours.encode_text(sample) == theirs.encode(sample).ids
        assert ours.decode(ours.encode_text(sample)) == theirs.decode(theirs.encode(sample).ids)


def _merges(spec: dict[str, Any]) -> list[tuple[int, tuple[str, str]]]:
    pairs = (each.partition(" ")[::2] if isinstance(each, str) else each for each in spec["model"]["merges"])
    return list(enumerate((left, right) for left, right in pairs))


def test_sentencepiece_merges_the_best_token_first_and_spells_what_it_does_not_know_in_bytes(
    tmp_path: Path,
) -> None:
    tokenizer = load(tmp_path)
    pieces = [tokenizer.piece(each) for each in tokenizer.encode_text("abca é", add_special_tokens=False)]
    assert pieces == ["▁abc", "a", "▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(tokenizer.encode_text("abca é")) == "abca é"


def test_a_space_goes_in_front_unless_the_file_says_that_none_does(tmp_path: Path) -> None:
    with_space, without = load(tmp_path), load(tmp_path, **{"ggml.add_space_prefix": False})
    assert with_space.piece(with_space.encode_text("ab", add_special_tokens=False)[0]) == "▁ab"
    assert without.piece(without.encode_text("ab", add_special_tokens=False)[0]) == "ab"
    assert (
        with_space.decode(with_space.encode_text("ab")) == without.decode(without.encode_text("ab")) == "ab"
    )


@pytest.mark.parametrize(
    ("said", "ids"),
    [
        ({}, [1, 263]),
        ({"ggml.add_bos_token": False}, [263]),
        ({"ggml.add_eos_token": True}, [1, 263, 2]),
        ({"ggml.add_bos_token": False, "ggml.add_eos_token": True}, [263, 2]),
        ({"ggml.bos_token_id": None}, [263]),
    ],
)
def test_a_text_begins_and_ends_as_the_file_says(
    said: dict[str, Any], ids: list[int], tmp_path: Path
) -> None:
    assert load(tmp_path, **said).encode_text("a") == ids


def test_tokens_are_matched_whole_and_control_tokens_are_not_shown(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, **{"ggml.add_bos_token": False, "ggml.add_space_prefix": False})
    ids = tokenizer.encode_text("a<tool>b</s>")
    assert [tokenizer.piece(each) for each in ids] == ["a", "<tool>", "b", None]
    assert tokenizer.decode(ids) == "a<tool>b"
    assert tokenizer.special_ids_of(["<tool>", "</s>"]) == {"</s>": 2}


def test_what_fills_the_vocabulary_up_is_no_token(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    assert "[PAD0]" not in tokenizer.vocabulary()


def test_a_chat_is_written_by_the_files_template(tmp_path: Path) -> None:
    tokenizer = load(tmp_path)
    assert tokenizer.has_chat_template
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")
    ids = tokenizer.encode_chat([ChatTurn("user", "abc")])
    assert [ids[0], ids[-1]] == [1, 2]
    assert tokenizer.decode(ids) == "abc"


def test_without_a_template_a_chat_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="this model has no chat template"):
        load(tmp_path, chat_template=None).encode_chat([ChatTurn("user", "abc")])


@pytest.mark.parametrize("pre", sorted(PRE_TOKENIZERS))
def test_every_pre_tokenizer_is_one_that_the_library_takes(pre: str, tmp_path: Path) -> None:
    """And leaves the text whole."""
    metadata = byte_level_metadata(_letters(), pre)
    tokenizer = TextTokenizer.load(write(tmp_path / "model.gguf", metadata))
    for sample in SAMPLES:
        assert tokenizer.decode(tokenizer.encode_text(sample)) == sample


def _letters() -> str:
    """A byte-level tokenizer that knows the bytes alone."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: index for index, letter in enumerate(letters)}
    return json.dumps({"model": {"vocab": vocabulary, "merges": []}, "added_tokens": []})


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"ggml.model": "t5"}, "tokenizer.ggml.model 't5' is not supported; use a model with gpt2 or llama"),
        ({"ggml.model": None}, "tokenizer.ggml.model None is not supported"),
        (
            {"ggml.model": "gpt2", "ggml.pre": "viking"},
            "tokenizer.ggml.pre 'viking' is not supported; use one of gpt-2",
        ),
        ({"ggml.model": "gpt2", "ggml.pre": 3}, "tokenizer.ggml.pre 3 is not supported"),
        (
            {"ggml.model": "gpt2", "ggml.merges": ["a b", "ab"]},
            "merge 'ab' is not of two tokens that make a third",
        ),
        ({"ggml.model": "gpt2", "ggml.merges": ["b c d"]}, "merge 'b c d' is not of two tokens"),
        ({"ggml.model": "gpt2", "ggml.merges": [1, 2]}, "tokenizer.ggml.merges is no list of strings"),
        ({"ggml.tokens": None}, "tokenizer.ggml.tokens has 0 tokens"),
        (
            {"ggml.tokens": ["a" * (MAX_TOKEN_CHARS + 1)]},
            f"tokens may have {MAX_TOKEN_CHARS} characters each",
        ),
        ({"ggml.token_type": [1, 2]}, "tokenizer.ggml.token_type has 2 entries for"),
        ({"ggml.token_type": ["a"]}, "tokenizer.ggml.token_type is no list of numbers"),
        ({"ggml.scores": [1.0]}, "tokenizer.ggml.scores has no score for each token"),
        ({"ggml.bos_token_id": 9999}, "tokenizer.ggml.bos_token_id 9999 is none of"),
        ({"ggml.bos_token_id": "x"}, "tokenizer.ggml.bos_token_id is 'x', which is no token id"),
        ({"chat_template": "{% if %}"}, "chat template cannot be compiled"),
        ({"chat_template": 5}, "tokenizer.chat_template is no text"),
    ],
)
def test_a_tokenizer_that_cannot_be_built_as_it_is_meant_is_refused(
    said: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        load(tmp_path, **said)


def test_the_digest_of_a_tokenizer_is_of_all_that_it_depends_on_and_of_nothing_else(tmp_path: Path) -> None:
    def digest(metadata: dict[str, Any]) -> str:
        return resolve_model(str(write(tmp_path / "model.gguf", metadata))).tokenizer_digest()

    metadata = sentencepiece_metadata()
    first = digest(metadata)
    assert digest(metadata | {"general.name": "another"}) == first
    assert digest(metadata | {"tokenizer.chat_template": "{{ messages }}"}) != first
    assert digest(metadata | {"tokenizer.ggml.scores": [1.0] * 274}) != first
