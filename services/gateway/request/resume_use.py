"""Read whether a stream may be gone on with at another gateway, and from where a call goes on with one."""

from __future__ import annotations

from dataclasses import replace

from services.gateway.request.request import Request
from services.gateway.request.resume_token import ResumePoint, ResumeTokens
from shared.errors import InvalidRequest
from shared.sampling.parameters import NO_LOGPROBS


def resumable_request(
    request: Request, choices: int, tokens: ResumeTokens, point: ResumePoint | None
) -> Request:
    """Return the request, one of so many of its call, as one that goes on from `point`, None for a new one.

    Raises InvalidRequest where it cannot be resumed, and for a token that is not its own.
    """
    if choices > 1:
        raise InvalidRequest("resumable is for one answer: send n 1 and one prompt, or leave it out")
    if request.tool_use.tools:
        raise InvalidRequest("resumable cannot be had with chat.tools: send one of them")
    if request.sampling.prompt_logprobs != NO_LOGPROBS:
        raise InvalidRequest("resumable cannot be had with sampling.prompt_logprobs: send one of them")
    if point is None:
        return replace(request, resume_tokens=tokens)
    claim = tokens.read(point)
    claim.deadline().check("gateway")
    if not 0 <= claim.received_tokens <= request.sampling.max_tokens:
        raise InvalidRequest(
            f"received_tokens is {claim.received_tokens}: send how many of the stream's at most "
            f"{request.sampling.max_tokens} tokens have come"
        )
    return replace(request, resume_tokens=tokens, resumed=claim)
