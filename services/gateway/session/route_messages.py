"""Make the messages that ask the three workers of a route."""

from __future__ import annotations

from dataclasses import replace

from services.gateway.fleet.routing import RoutingDecision
from services.gateway.request.request import Request
from services.gateway.scope.prompt_logprobs_buffer import PromptLogprobsBuffer
from services.gateway.scope.token_log import TokenLog
from shared.deadline import NO_DEADLINE_US, Deadline
from shared.fairness.share import TenantShare
from shared.messages import (
    NO_LENDER,
    AdapterId,
    Message,
    Open,
    Prefill,
    PrefixLender,
    Reserve,
    pack_hashes,
    pack_ids,
)
from shared.sampling.parameters import NO_LOGPROBS
from shared.text.incremental import PROMPT_TAIL_TOKENS


def reserve_message(
    route: RoutingDecision,
    request: Request,
    gateway: str,
    ids: tuple[int, ...],
    prompt_len: int,
    hashes: tuple[bytes, ...],
    adapter: AdapterId,
    share: TenantShare,
    answer_scope: str,
    *,
    source: str,
    incarnation: int = 0,
    guest: bool = False,
    tells_prompt: bool = False,
    stay_ms: int = 0,
    expected_tokens: int = 0,
    first_token: Deadline | None = None,
    thinking: Deadline | None = None,
) -> Reserve:
    """Return what asks a decode worker for room.

    `ids` are those whose KV comes from the worker `source`, or that are computed there itself for "";
    `hashes` those of their blocks. `incarnation`: the life of a decode worker that hands the request over.
    `tells_prompt`: the log-probabilities of the prompt are to come from there, if they are wanted. `stay_ms`,
    `expected_tokens` and `answer_scope` as in `Reserve`; `first_token` and `thinking`: its `first_token_us`
    and `thinking_us`.
    """
    sampling = request.sampling
    if sampling.prompt_logprobs != NO_LOGPROBS and not tells_prompt:
        sampling = replace(sampling, prompt_logprobs=NO_LOGPROBS)
    return Reserve(
        token_ids=pack_ids(ids),
        prompt_len=prompt_len,
        block_hashes=pack_hashes(hashes),
        sampling=sampling,
        gateway=gateway,
        detokenizer=route.detokenizer,
        prefill=source,
        speculator=route.speculator,
        priority=request.priority,
        inter_token_us=1000 * (request.inter_token_deadline_ms or 0),
        adapter=adapter,
        share=share,
        guest=guest,
        resumable=request.resumable,
        predecessor_incarnation=incarnation,
        stay_ms=stay_ms,
        expected_tokens=expected_tokens,
        first_token_us=NO_DEADLINE_US if first_token is None else first_token.to_steady_us(),
        thinking_us=NO_DEADLINE_US if thinking is None else thinking.to_steady_us(),
        answer_scope=answer_scope,
    )


def route_messages(
    route: RoutingDecision,
    request: Request,
    log: TokenLog,
    told: PromptLogprobsBuffer,
    gateway: str,
    ids: tuple[int, ...],
    hashes: tuple[bytes, ...],
    first_token: Deadline,
    adapter: AdapterId,
    share: TenantShare,
    answer_scope: str,
    *,
    guest: bool,
    stay_ms: int = 0,
    expected_tokens: int = 0,
    lender: PrefixLender = NO_LENDER,
    thinking: Deadline | None = None,
) -> dict[str, Message]:
    """Return the messages by role, first for the role that the first token waits for.

    Decode hears all of what prefill would where it computes the prompt. `ids` are those of prompt and log,
    `hashes` those of their blocks. `share` names the tenant as workers know it; `guest`: it may have a
    place at decode beyond the ordinary ones; `stay_ms`, `expected_tokens` and `answer_scope` as in `Reserve`,
    `lender` as in `Prefill`; `thinking`: when that is closed.
    """
    prompt_ids = ids[: log.prompt_tokens]
    reserve = reserve_message(
        route,
        request,
        gateway,
        ids,
        len(prompt_ids),
        hashes,
        adapter,
        share,
        answer_scope,
        source=route.prefill,
        guest=guest,
        tells_prompt=not (route.prefill or told.complete),
        stay_ms=stay_ms,
        expected_tokens=expected_tokens,
        first_token=None if route.prefill else first_token,
        thinking=thinking,
    )
    opened = Open(
        gateway=gateway,
        prompt_tail=pack_ids(prompt_ids[-PROMPT_TAIL_TOKENS:]),
        replay=pack_ids(log.ids),
        emitted_chars=log.told_chars,
        next_position=log.next_position,
        stop=request.stop,
        prefill=route.prefill,
        decode=route.decode,
        shown_ids=request.shown_ids,
        stop_regex=request.stop_regex,
    )
    if not route.prefill:
        return {"decode": reserve, "detokenizer": opened}
    prefill = Prefill(
        token_ids=reserve.token_ids,
        prompt_len=len(prompt_ids),
        block_hashes=reserve.block_hashes,
        sampling=reserve.sampling if told.complete else request.sampling,
        gateway=gateway,
        detokenizer=route.detokenizer,
        decode=route.decode,
        priority=request.priority,
        first_token_us=first_token.to_steady_us(),
        adapter=adapter,
        share=share,
        stay_ms=stay_ms,
        lender=lender,
    )
    return {"prefill": prefill, "detokenizer": opened, "decode": reserve}
