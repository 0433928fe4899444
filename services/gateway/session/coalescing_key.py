"""Say which requests have one answer, so that those in flight at one time can have it by one computation."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.request.request import Request


@dataclass(frozen=True, slots=True)
class CoalescingKey:
    """Requests with equal keys have equal answers. `digest`: the hash, which is taken once."""

    model: ModelIdentity
    request: Request
    digest: int = field(compare=False)

    def __hash__(self) -> int:
        return self.digest


def coalescing_key(request: Request, model: ModelIdentity) -> CoalescingKey:
    """Return the key of a request that says all of its sampling.

    Every field of a request counts but those named here, and so does one that is new: an answer that is
    computed twice is better than a wrong one. The deadline from tokens to tokens counts, as workers keep it.
    """
    sampling = request.sampling
    if not sampling.temperature and sampling.seed:
        sampling = replace(sampling, seed=0)
    asked = replace(
        request,
        model="",  # it may have several names
        sampling=sampling,
        ttft_deadline_ms=None,
        deadline_ms=None,
        client_sent_unix_us=0,
        resume_tokens=None,
        fallback=None,  # there is none left
        sticky_key="",
        model_choice=None,
        agent=None,
    )
    told_apart_by = (request.chat, request.text, request.token_ids, request.tenant)
    return CoalescingKey(model, asked, hash(told_apart_by))
