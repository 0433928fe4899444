from __future__ import annotations

from dataclasses import replace

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.request.prompt_limits import PromptLimits
from services.gateway.request.request import Request, validate_request
from shared.bus import codec
from shared.errors import InvalidRequest, TooLarge
from shared.messages import AdapterId, Envelope, Prefill, pack_hashes, pack_ids
from shared.sampling.parameters import (
    MAX_ALLOWED_IDS,
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_GRAMMAR_BYTES,
    MAX_LOGIT_BIAS_ENTRIES,
    MAX_STOP_TOKEN_IDS,
    Grammar,
    SamplingParams,
)
from tests.support.data import REPOSITORY

USUAL = PromptLimits(1 << 20)
LARGE_ID = 2**31 - 1
ALL_OPTIONS = SamplingParams(
    logit_bias=tuple((LARGE_ID - number, 1.5) for number in range(MAX_LOGIT_BIAS_ENTRIES)),
    stop_token_ids=(LARGE_ID,) * MAX_STOP_TOKEN_IDS,
    allowed_ids=(LARGE_ID,) * MAX_ALLOWED_IDS,
    bad_words=((LARGE_ID,) * MAX_BAD_WORD_TOKENS,) * MAX_BAD_WORDS,
    grammar=Grammar("json_schema", "x" * MAX_GRAMMAR_BYTES),
    seed=2**64 - 1,
    max_tokens=2**31 - 1,
)


def ids(count: int) -> Request:
    return validate_request(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[7] * count)), drawn_seed=0)


def text(content: str) -> Request:
    return validate_request(pb.GenerateRequest(text=content), drawn_seed=0)


def test_the_longest_prompt_fits_into_a_message_beside_all_options_at_their_limits() -> None:
    tokens = [LARGE_ID] * USUAL.max_ids
    hashes = pack_hashes([b"h" * 16] * (len(tokens) // 16))
    message = Prefill(
        pack_ids(tokens),
        len(tokens),
        hashes,
        sampling=ALL_OPTIONS,
        gateway="g" * 64,
        detokenizer="d" * 64,
        decode="d" * 64,
        priority=2,
        first_token_us=2**62,
        adapter=AdapterId("a" * 64, "d" * 64),
    )
    envelope = Envelope("r" * 64, epoch=2**31, deadline_us=2**62, reply="_INBOX." + "r" * 64, origin="g" * 64)
    assert len(codec.encode(message, envelope)) <= USUAL.max_payload_bytes


@pytest.mark.parametrize("limits", [USUAL, PromptLimits(1 << 16)])
def test_as_many_ids_as_fit_are_taken_and_one_more_is_not(limits: PromptLimits) -> None:
    limits.check_request(ids(limits.max_ids))
    limits.check_tokens(limits.max_ids)
    with pytest.raises(InvalidRequest, match=rf"^token_ids\.ids has .* at most {limits.max_ids}$"):
        limits.check_request(ids(limits.max_ids + 1))
    with pytest.raises(TooLarge, match=f"the bus carries {limits.max_ids}: shorten it"):
        limits.check_tokens(limits.max_ids + 1)


def test_a_text_counts_in_bytes_of_utf_8() -> None:
    most = USUAL.max_text_bytes
    USUAL.check_request(text("x" * most))
    USUAL.check_request(text("é" * (most // 2)))
    for content in ("x" * (most + 1), "é" * (most // 2 + 1)):
        with pytest.raises(InvalidRequest, match=rf"^text has \d+ bytes of UTF-8: send at most {most}$"):
            USUAL.check_request(text(content))


def test_all_messages_of_a_chat_count_together() -> None:
    half = "x" * (USUAL.max_text_bytes // 2)
    turns = [pb.ChatMessage(role="user", content=half), pb.ChatMessage(role="user", content=half)]
    chat = validate_request(pb.GenerateRequest(chat=pb.ChatPrompt(messages=turns)), drawn_seed=0)
    USUAL.check_request(chat)
    longer = replace(chat, chat=(*chat.chat, chat.chat[0]))
    with pytest.raises(InvalidRequest, match=r"^chat\.messages hold "):
        USUAL.check_request(longer)


def test_the_page_says_the_limits_of_the_usual_megabyte() -> None:
    page = (REPOSITORY / "services" / "gateway" / "README.md").read_text()
    assert f"{USUAL.max_ids:,} of them or {USUAL.max_text_bytes:,} bytes of text" in " ".join(page.split())
