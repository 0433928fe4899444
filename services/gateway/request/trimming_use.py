"""Read to which budgets a prompt may be shortened: its client says so, or the gateway's settings."""

from __future__ import annotations

import math

from protos.penstock.v1 import inference_pb2 as pb
from shared.errors import InvalidRequest
from shared.messages import NO_TRIMMING, Trimming

LEAST_PASSAGE_SHARE = 0.05
"""The least share of their tokens that passages may be shortened to."""


def read_trimming(message: pb.GenerateRequest, usual: Trimming) -> Trimming:
    """Return the budgets in force, each that the request leaves open as in `usual`.

    Raises InvalidRequest that names the field.
    """
    if not message.HasField("trimming"):
        return usual
    asked = message.trimming
    named = [field.name for field, _ in asked.ListFields() if field.name != "off"]
    if asked.off and named:
        raise InvalidRequest(f"trimming.off is set, and trimming.{named[0]} too: send one of them")
    if asked.off:
        return NO_TRIMMING
    return Trimming(
        passage_tokens=_budget(asked, "max_passage_tokens", usual.passage_tokens),
        passage_share=_share(asked, usual.passage_share),
        duplicates=asked.duplicates if asked.HasField("duplicates") else usual.duplicates,
        prompt_tokens=_budget(asked, "max_prompt_tokens", usual.prompt_tokens),
        fit_context=asked.fit_context if asked.HasField("fit_context") else usual.fit_context,
        compact=asked.compact if asked.HasField("compact") else usual.compact,
        summary_tokens=_budget(asked, "max_summary_tokens", usual.summary_tokens),
        tool_tokens=_budget(asked, "max_tool_tokens", usual.tool_tokens),
    )


def _budget(asked: pb.Trimming, name: str, usual: int) -> int:
    if not asked.HasField(name):
        return usual
    tokens = int(getattr(asked, name))
    if tokens < 0:
        raise InvalidRequest(f"trimming.{name} is {tokens}: send a number of tokens, from 0 on")
    return tokens


def _share(asked: pb.Trimming, usual: float) -> float:
    if not asked.HasField("passage_share"):
        return usual
    share = asked.passage_share
    if not (math.isfinite(share) and LEAST_PASSAGE_SHARE <= share <= 1.0):
        raise InvalidRequest(
            f"trimming.passage_share is {share:g}: send a share from {LEAST_PASSAGE_SHARE:g} to 1, which is "
            "all of them"
        )
    return round(share, 6)


def over_budget_warning(trimming: Trimming, turns: int, tokens: int) -> str:
    """Return what a client should know of a chat of so many turns whose prompt has `tokens`, "" for
    nothing."""
    if not turns or not trimming.prompt_tokens or tokens <= trimming.prompt_tokens:
        return ""
    return (
        f"the prompt has {tokens} tokens, and its budget is {trimming.prompt_tokens} "
        "(trimming.max_prompt_tokens): what has to stay of it is longer"
    )
