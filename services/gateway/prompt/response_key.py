"""Digest what an answer depends on: requests with one digest get one answer."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b

from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.request.cache_use import NO_CACHE
from services.gateway.request.request import Request
from shared.cache_modes import SEMANTIC
from shared.messages import CACHE_DIGEST_BYTES, MAX_COMPARED_BYTES, ResponseKey, pack_ids

_NEAR, _EXACT = b"penstock near", b"penstock exact"
NORMAL_PRIORITY = 0


def response_key(
    request: Request, models: tuple[ModelIdentity, ...], fleet_key: bytes, rewriter: str
) -> ResponseKey:
    """`models` are those that may come to answer: with passages it can be another one than without.
    `rewriter` is who says what is searched for in the place of the question: what is kept of one is of no use
    for another.

    Every field of a request counts but those named here, and so does one that is new: an answer that is not
    found is better than a wrong one.
    """
    sampling = request.sampling
    if not sampling.temperature or request.cache.any_seed:
        sampling = replace(sampling, seed=0)
    chat, question = request.chat, request.question
    if chat:
        chat = (*chat[:-1], replace(chat[-1], content=""))
    rest = replace(
        request,
        model="",
        text=None if request.text is None else "",
        chat=chat,
        token_ids=None,
        sampling=sampling,
        cache=NO_CACHE,
        # When, and how urgently: what is answered in time is the same answer.
        ttft_deadline_ms=None,
        deadline_ms=None,
        inter_token_deadline_ms=None,
        priority=NORMAL_PRIORITY,
        client_sent_unix_us=0,
        coalesces=False,
        retrieval=replace(request.retrieval, may_degrade=True),  # a degraded answer is not kept
        # Which model answers is in `models`, however it was chosen.
        fallback=None,
        sticky_key="",
        model_choice=None,
        agent=None,
        # What they change of an answer is in the fields above, or it is a degraded one, which is not kept.
        flags=(),
    )
    token_ids = b"" if request.token_ids is None else pack_ids(request.token_ids)
    searches = request.retrieval.passages and not request.retrieval.query
    stated = (models, rest, token_ids, rewriter if searches else "")
    near = _digest(repr(stated).encode(errors="surrogatepass"), fleet_key, _NEAR)
    exact = _digest(near + question.encode(errors="surrogatepass"), fleet_key, _EXACT)
    return ResponseKey(request.tenant, exact, near, _compared(request))


def _compared(request: Request) -> str:
    """The question, where that of another request may be near enough to it."""
    if request.cache.mode != SEMANTIC or not request.question.strip():
        return ""
    return request.question if len(request.question.encode()) <= MAX_COMPARED_BYTES else ""


def _digest(stated: bytes, fleet_key: bytes, person: bytes) -> bytes:
    return blake2b(stated, digest_size=CACHE_DIGEST_BYTES, key=fleet_key, person=person).digest()
