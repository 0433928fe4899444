"""Whether an earlier answer will do for a request, and which: its client says so, or a default."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from protos.penstock.v1 import inference_pb2 as pb
from shared.cache_modes import EXACT, OFF, SEMANTIC
from shared.errors import InvalidRequest
from shared.messages import ChatTurn
from shared.sampling.parameters import NO_LOGPROBS, SamplingParams

MAX_AGE_MS = 24 * 3600 * 1000
"""The greatest age that an earlier answer may be allowed."""
_MODES = {pb.CACHE_MODE_OFF: OFF, pb.CACHE_MODE_EXACT: EXACT, pb.CACHE_MODE_SEMANTIC: SEMANTIC}


@dataclass(frozen=True, slots=True)
class CacheUse:
    """`mode` is one of CACHE_MODES. `min_similarity` 0.0: the retriever's own; `max_age_ms` 0: of any age.
    `greedy_only`: an answer that is drawn would be another one each time, and whether it is drawn is not
    known yet. `is_default`: the client has not asked for it."""

    mode: str = OFF
    min_similarity: float = 0.0
    max_age_ms: int = 0
    any_seed: bool = False
    greedy_only: bool = False
    is_default: bool = False

    @property
    def wanted(self) -> bool:
        return self.mode != OFF


NO_CACHE = CacheUse()


def read_cache_use(
    message: pb.GenerateRequest, sampling: SamplingParams, chat: Sequence[ChatTurn], default: str
) -> CacheUse:
    """Raises InvalidRequest for what the client asks for and cannot have; a default that does not fit is off,
    or exact in place of semantic."""
    asked = message.cache
    if asked.mode not in (pb.CACHE_MODE_UNSPECIFIED, *_MODES):
        raise InvalidRequest(f"cache.mode is {int(asked.mode)}: send CACHE_MODE_OFF, _EXACT or _SEMANTIC")
    is_default = asked.mode == pb.CACHE_MODE_UNSPECIFIED
    mode = default if is_default else _MODES[asked.mode]
    _check_numbers(asked)
    if mode == OFF:
        return NO_CACHE
    why = _why_not_kept(sampling)
    if why and not is_default:
        raise InvalidRequest(why)
    if why:
        return NO_CACHE
    why = _why_not_compared(message, chat) if mode == SEMANTIC else ""
    if why and not is_default:
        raise InvalidRequest(why)
    use = CacheUse(
        EXACT if why else mode,
        asked.min_similarity,
        asked.max_age_ms,
        asked.any_seed,
        greedy_only=not message.sampling.HasField("seed") and not asked.any_seed,
        is_default=is_default,
    )
    return settled_cache_use(use, sampling) if message.sampling.HasField("temperature") else use


def settled_cache_use(use: CacheUse, sampling: SamplingParams) -> CacheUse:
    """Return the cache use that holds with the `sampling` in force.

    Raises InvalidRequest where a client asked for what it cannot have.
    """
    if not use.greedy_only:
        return use
    if not sampling.temperature:
        return replace(use, greedy_only=False)
    if use.is_default:
        return NO_CACHE
    raise InvalidRequest(
        "cache needs an answer that comes again: set temperature 0, a seed, or cache.any_seed where one "
        "that was drawn with another seed will do"
    )


def _check_numbers(asked: pb.Cache) -> None:
    if asked.HasField("min_similarity"):
        value = asked.min_similarity
        if not (math.isfinite(value) and 0.0 < value <= 1.0):
            raise InvalidRequest(f"cache.min_similarity is {value:g}: send a number above 0 and at most 1")
        if asked.mode != pb.CACHE_MODE_SEMANTIC:
            raise InvalidRequest(
                "cache.min_similarity is for CACHE_MODE_SEMANTIC alone: send that, or neither"
            )
    if not 0 <= asked.max_age_ms <= MAX_AGE_MS:
        raise InvalidRequest(
            f"cache.max_age_ms is {asked.max_age_ms}: send milliseconds up to {MAX_AGE_MS}, or 0 for any age"
        )


def _why_not_kept(sampling: SamplingParams) -> str:
    if sampling.logprobs != NO_LOGPROBS or sampling.prompt_logprobs != NO_LOGPROBS:
        return (
            "cache keeps no log-probabilities: leave out either it or sampling.logprobs and prompt_logprobs"
        )
    return ""


def _why_not_compared(message: pb.GenerateRequest, chat: Sequence[ChatTurn]) -> str:
    kind = message.WhichOneof("prompt")
    if kind == "token_ids":
        return "CACHE_MODE_SEMANTIC compares questions: send text or a chat, or use CACHE_MODE_EXACT"
    if message.chat.tools:
        return (
            "CACHE_MODE_SEMANTIC does not go with chat.tools, whose arguments are the question's own: use "
            "CACHE_MODE_EXACT"
        )
    if chat and chat[-1].role != "user":
        return (
            "CACHE_MODE_SEMANTIC needs the last of chat.messages to have role user: it is what is compared; "
            "use CACHE_MODE_EXACT"
        )
    return ""
