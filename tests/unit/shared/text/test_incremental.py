"""Streamed deltas add up to the decode of all ids, and come as early as that allows."""

from __future__ import annotations

import random

import pytest

from shared.text.decoder_stages import stage_factories
from shared.text.incremental import PROMPT_TAIL_TOKENS, IncrementalDecoder, PlainTexts, settled_tail
from tests.support.tokenizer_kinds import (
    BYTE_LEVEL,
    BYTES,
    LANGUAGES,
    MADE,
    REAL,
    SAMPLES,
    byte_id,
    id_of,
    library_tokenizer,
    passages,
    text_tokenizer,
)

REPLACEMENT = "\ufffd"
STREAMING_KINDS = (*BYTE_LEVEL, "byte_fallback", "stories260k", "metaspace", "word_piece", "no_decoder")


def decode(kind: str, ids: list[int]) -> str:
    text: str = library_tokenizer(kind).decode(ids, skip_special_tokens=True)
    return text


def prompt_text(kind: str, ids: list[int]) -> str:
    """decode(ids) without an incomplete character at its end, found by trying to complete it."""
    text = decode(kind, ids)
    if kind in BYTES and text.endswith(REPLACEMENT):
        for second in (0x80, 0x90, 0xA0):
            for more in range(3):
                rest = [byte_id(kind, byte) for byte in (second, *(0x80,) * more)]
                completed = decode(kind, [*ids, *rest])
                if not completed.endswith(REPLACEMENT):
                    return completed[:-1]
    return text


def deltas(kind: str, tail: list[int], ids: list[int], chunk: int = 1) -> list[str]:
    decoder = text_tokenizer(kind).decoder(tail)
    parts = [decoder.push(ids[start : start + chunk]) for start in range(0, len(ids), chunk)]
    return [*parts, decoder.finish()]


def random_ids(kind: str, rng: random.Random, count: int) -> list[int]:
    """Ids from a small pool, so that the same few meet in many orders; bytes of all sorts among them."""
    vocabulary = library_tokenizer(kind).get_vocab_size()
    pool = [rng.randrange(vocabulary) for _ in range(12)] + [0, 1, 2]
    if kind in BYTES:
        lead = (0x20, 0x41, 0xC3, 0xE0, 0xE6, 0xED, 0xEF, 0xF0, 0xF4, 0xFF, 0xC0)
        pool += [byte_id(kind, byte) for byte in (*lead, *(0x80, 0x9D, 0xA0, 0xBF, 0x90) * 4)]
    return [rng.choice(pool) for _ in range(count)]


@pytest.mark.parametrize("kind", [*MADE, *REAL])
def test_deltas_of_any_ids_after_any_prompt_are_the_decode_of_all(kind: str) -> None:
    rng = random.Random(5)
    for _ in range(300):
        tail = random_ids(kind, rng, rng.randrange(10))
        ids = random_ids(kind, rng, rng.randrange(24))
        expected = decode(kind, tail + ids)[len(prompt_text(kind, tail)) :]
        assert "".join(deltas(kind, tail, ids)) == expected, (tail, ids)


@pytest.mark.parametrize("kind", [*MADE, *REAL])
def test_every_split_into_pushes_gives_the_same_text(kind: str) -> None:
    rng = random.Random(6)
    for _ in range(50):
        tail, ids = random_ids(kind, rng, 5), random_ids(kind, rng, 20)
        texts = {"".join(deltas(kind, tail, ids, chunk)) for chunk in (1, 2, 3, 7, 20)}
        assert len(texts) == 1


@pytest.mark.thorough(
    but="gpt2-en | gpt2-ar | gpt2-th | stories260k-en | stories260k-zh | stories260k-ru | byte_level-zh | "
    "byte_level-hi | byte_fallback-ar | byte_fallback-zh"
)
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", *REAL])
def test_text_of_every_language_survives_a_cut_into_prompt_and_answer_anywhere(
    kind: str, language: str
) -> None:
    rng = random.Random(language)
    for text in passages(language, 2):
        ids = library_tokenizer(kind).encode(text[:300]).ids
        for cut in (0, 1, len(ids), *(rng.randrange(len(ids)) for _ in range(6))):
            tail, answer = ids[:cut][-PROMPT_TAIL_TOKENS:], ids[cut:]
            context = list(settled_tail(text_tokenizer(kind).piece, tail))
            expected = decode(kind, ids)[len(prompt_text(kind, ids[:cut])) :]
            assert "".join(deltas(kind, context, answer)) == expected


@pytest.mark.parametrize("kind", ["byte_level", *REAL])
def test_emoji_of_many_code_points_survive(kind: str) -> None:
    ids = library_tokenizer(kind).encode(SAMPLES[-1]).ids
    assert "".join(deltas(kind, [], ids)) == decode(kind, ids)


@pytest.mark.parametrize("kind", STREAMING_KINDS)
def test_ascii_text_comes_token_by_token(kind: str) -> None:
    ids = library_tokenizer(kind).encode("the water . the water").ids
    decoder = text_tokenizer(kind).decoder()
    seen = ""
    for count, token_id in enumerate(ids, start=1):
        seen += decoder.push([token_id])
        assert seen == decode(kind, ids[:count])
    assert decoder.finish() == ""


@pytest.mark.parametrize("kind", BYTE_LEVEL)
def test_byte_level_text_comes_as_soon_as_its_character_is_complete(kind: str) -> None:
    rng = random.Random(7)
    for _ in range(40):
        tail, ids = random_ids(kind, rng, 6), random_ids(kind, rng, 30)
        decoder = text_tokenizer(kind).decoder(tail)
        seen = ""
        for count, token_id in enumerate(ids, start=1):
            seen += decoder.push([token_id])
            assert seen == prompt_text(kind, tail + ids[:count])[len(prompt_text(kind, tail)) :]


def test_text_of_a_byte_run_comes_with_the_token_that_ends_the_run() -> None:
    kind = "byte_fallback"
    decoder = text_tokenizer(kind).decoder()
    euro = [byte_id(kind, byte) for byte in "€".encode()]
    assert decoder.push(euro) == ""
    assert decoder.push([id_of(kind, "a")]) == "€a"


def test_a_byte_run_known_to_be_invalid_comes_byte_by_byte() -> None:
    kind = "byte_fallback"
    decoder = text_tokenizer(kind).decoder()
    assert decoder.push([byte_id(kind, byte) for byte in (0xC3, 0x41)]) == REPLACEMENT * 2
    assert decoder.push([byte_id(kind, 0x41)]) == REPLACEMENT


def test_the_space_in_front_belongs_to_the_first_visible_token_only() -> None:
    tokenizer = text_tokenizer("byte_fallback")
    the = id_of("byte_fallback", "▁the")
    assert tokenizer.decoder([1]).push([the, the]) == "the the"
    assert tokenizer.decoder([1, the]).push([the]) == " the"


def test_a_character_that_the_prompt_begins_is_text_of_the_answer() -> None:
    for kind in ("byte_level", "byte_fallback"):
        first, *rest = [byte_id(kind, byte) for byte in "東".encode()]
        decoder = text_tokenizer(kind).decoder([first])
        assert decoder.push(rest) + decoder.finish() == "東"


def test_a_byte_run_that_began_outside_the_tail_is_read_from_its_next_character() -> None:
    kind = "byte_fallback"
    run = [byte_id(kind, byte) for byte in ("東" * PROMPT_TAIL_TOKENS).encode()]
    tail = run[-PROMPT_TAIL_TOKENS:]
    assert run[0] != tail[0]
    decoder = text_tokenizer(kind).decoder(settled_tail(text_tokenizer(kind).piece, tail))
    answer = [byte_id(kind, byte) for byte in "京".encode()]
    assert decoder.push(answer) + decoder.finish() == "京"


def test_a_whole_prompt_that_begins_inside_a_character_is_left_as_it_is() -> None:
    kind = "byte_fallback"
    prompt = [byte_id(kind, 0x80), byte_id(kind, 0x41)]
    assert settled_tail(text_tokenizer(kind).piece, prompt) == prompt


def test_ids_that_only_the_model_knows_have_no_text() -> None:
    tokenizer = text_tokenizer("byte_level")
    unknown = library_tokenizer("byte_level").get_vocab_size() + 7
    letter = byte_id("byte_level", 0x41)
    assert tokenizer.decoder().push([letter, unknown, letter]) == "AA"


def test_the_past_is_not_decoded_again() -> None:
    looked_up: list[int] = []

    def piece(token_id: int) -> str | None:
        looked_up.append(token_id)
        return text_tokenizer("byte_level").piece(token_id)

    stages = stage_factories({"type": "ByteLevel"})
    decoder = IncrementalDecoder(piece, stages, [40] * 8)
    for token_id in range(200):
        looked_up.clear()
        decoder.push([token_id])
        assert set(looked_up) <= {token_id}


def test_a_prompt_that_leaves_the_stages_as_they_are_is_not_decoded_for_each_stream() -> None:
    looked_up: list[int] = []

    def piece(token_id: int) -> str | None:
        looked_up.append(token_id)
        return text_tokenizer("byte_level").piece(token_id)

    stages = stage_factories({"type": "ByteLevel"})
    tail = [byte_id("byte_level", letter) for letter in b"once"]
    plain = PlainTexts(piece, stages)
    IncrementalDecoder(piece, stages, tail, plain=plain)
    looked_up.clear()

    decoder = IncrementalDecoder(piece, stages, tail, plain=plain)

    assert looked_up == []
    assert decoder.push(tail) == "once"


class NothingPlain(PlainTexts):
    """Every id goes through the stages."""

    def __missing__(self, token_id: int) -> str | None:
        return None


@pytest.mark.parametrize("kind", [*MADE, *REAL])
@pytest.mark.parametrize("chunk", [1, 3])
def test_what_is_looked_up_is_what_the_stages_give(kind: str, chunk: int) -> None:
    tokenizer = text_tokenizer(kind)
    rng = random.Random(chunk)
    for _ in range(10):
        tail, ids = random_ids(kind, rng, 8), random_ids(kind, rng, 60)
        looked_up = tokenizer.decoder(tail)
        through = IncrementalDecoder(
            tokenizer.piece, tokenizer._stages, tail, plain=NothingPlain(tokenizer.piece, ())
        )
        for start in range(0, len(ids), chunk):
            some = ids[start : start + chunk]
            assert looked_up.push(some) == through.push(some)
        assert looked_up.finish() == through.finish()


def test_a_plain_token_goes_through_the_stages_once() -> None:
    looked_up: list[int] = []

    def piece(token_id: int) -> str | None:
        looked_up.append(token_id)
        return text_tokenizer("byte_level").piece(token_id)

    letter = id_of("byte_level", "A")
    decoder = IncrementalDecoder(piece, stage_factories({"type": "ByteLevel"}))
    assert decoder.push([letter]) == "A"
    looked_up.clear()
    assert decoder.push([letter, letter]) == "AA"
    assert not looked_up


def test_a_special_token_that_one_stream_shows_is_not_shown_in_another() -> None:
    tokenizer = text_tokenizer("byte_level")
    special = next(iter(tokenizer._special_ids))
    shown = tokenizer.decoder(shown_ids={special})
    assert shown.push([special]) != ""
    assert tokenizer.decoder().push([special]) == ""
