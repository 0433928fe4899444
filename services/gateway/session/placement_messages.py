"""What the three workers of a placement are asked."""

from __future__ import annotations

from dataclasses import replace

from services.gateway.fleet.placement import Placement
from services.gateway.request.request import Request
from services.gateway.scope.token_log import TokenLog
from services.gateway.scope.told_prompt import ToldPrompt
from shared.deadline import Deadline
from shared.messages import AdapterId, Message, Open, Prefill, Reserve, pack_hashes, pack_ids
from shared.sampling import NO_LOGPROBS
from shared.text.incremental import PROMPT_TAIL_TOKENS


def placement_messages(
    placement: Placement,
    request: Request,
    log: TokenLog,
    told: ToldPrompt,
    gateway: str,
    ids: tuple[int, ...],
    hashes: tuple[bytes, ...],
    first_token: Deadline,
    adapter: AdapterId,
) -> dict[str, Message]:
    """By role, first whom the first token waits for; decode hears all of what prefill would where it computes
    the prompt. `ids`: of prompt and log, with their blocks' names."""
    token_ids, packed_hashes = pack_ids(ids), pack_hashes(hashes)
    prompt_ids = ids[: log.prompt_tokens]
    untold = replace(request.sampling, prompt_logprobs=NO_LOGPROBS)
    to_tell = untold if told.complete else request.sampling
    prefill = Prefill(
        token_ids=token_ids,
        prompt_len=len(prompt_ids),
        block_hashes=packed_hashes,
        sampling=to_tell,
        gateway=gateway,
        detokenizer=placement.detokenizer,
        decode=placement.decode,
        priority=request.priority,
        first_token_us=first_token.to_unix_us(),
        adapter=adapter,
    )
    opened = Open(
        gateway=gateway,
        prompt_tail=pack_ids(prompt_ids[-PROMPT_TAIL_TOKENS:]),
        replay=pack_ids(log.ids),
        emitted_chars=log.emitted_chars,
        next_position=log.next_position,
        stop=request.stop,
        prefill=placement.prefill,
        decode=placement.decode,
        shown_ids=request.shown_ids,
    )
    reserve = Reserve(
        token_ids=token_ids,
        prompt_len=len(prompt_ids),
        block_hashes=packed_hashes,
        sampling=untold if placement.prefill else to_tell,
        gateway=gateway,
        detokenizer=placement.detokenizer,
        prefill=placement.prefill,
        speculator=placement.speculator,
        priority=request.priority,
        inter_token_us=1000 * (request.inter_token_deadline_ms or 0),
        adapter=adapter,
    )
    if placement.prefill:
        return {"prefill": prefill, "detokenizer": opened, "decode": reserve}
    return {"decode": reserve, "detokenizer": opened}
