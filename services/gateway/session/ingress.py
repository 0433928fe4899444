"""Take a call in, at every edge alike, before it is a session: whose it is, what it asks for, is there
room."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.config import GatewayConfig
from services.gateway.keys.allowance import Allowance, CountedElsewhere
from services.gateway.keys.key_gate import KeyGate
from services.gateway.keys.keys_in_force import NOBODY
from services.gateway.keys.rate_limits import LimitReached
from services.gateway.request.agent_hints import read_agent_hints
from services.gateway.request.choices import Choices
from services.gateway.request.fallback_use import read_sticky_key
from services.gateway.request.request import Request, validate_request
from services.gateway.request.resume_token import ResumePoint, ResumeTokens
from services.gateway.request.resume_use import resumable_request
from services.gateway.scope.arrival import arrived_s
from services.gateway.scope.budget import Budget
from services.gateway.scope.call_identity import call_identity
from services.gateway.scope.outcome import Outcome
from services.gateway.scope.report import count_outcome
from services.gateway.session.session import Session
from services.gateway.session.session_registry import SessionRegistry
from shared.errors import DeadlineExpired, InvalidRequest, NotFound, Overloaded, PenstockError, TooLarge
from shared.files.api_key_file import ApiKey
from shared.seams.chance import CHANCE

log = structlog.get_logger()

SEED_BITS = 63


class Ingress:
    def __init__(self, registry: SessionRegistry, key_gate: KeyGate, config: GatewayConfig) -> None:
        self._registry = registry
        self._key_gate = key_gate
        self._config = config

    @property
    def instance(self) -> str:
        """The gateway's own id."""
        return self._registry.instance

    def identify(self, authorization: Sequence[str | bytes]) -> ApiKey:
        """Return the key in these values of an `authorization` header; raises Unauthenticated."""
        return self._key_gate.identify(authorization)

    def identify_operator(self, authorization: Sequence[str | bytes]) -> None:
        """Raise Unauthenticated or NotAnOperator where these values have no operator's key."""
        self._key_gate.check_operator(self._key_gate.identify(authorization))

    def validate(self, message: pb.GenerateRequest) -> Request:
        """Return a prompt that is to be tokenized alone. Raises InvalidRequest that names what is wrong."""
        request = self._read(message, NOBODY, "", ())
        self._registry.prompt_limits.check_request(request)
        return request

    def _read(
        self, message: pb.GenerateRequest, key: ApiKey, cache_salt: str, flags: tuple[str, ...]
    ) -> Request:
        config = self._registry.flags.config_of(flags)
        return validate_request(
            message,
            drawn_seed=_draw_seed(),
            tenant=key.tenant,
            cache_salt=cache_salt,
            cache_mode=key.cache or config.cache_mode,
            passage_order=config.passage_order,
            retrieval_passages=config.retrieval_passages,
            max_tokens=config.default_max_tokens,
            default_model=config.default_model,
            weight=key.weight,
            trimming=config.usual_trimming(),
            coalesces=config.coalesce,
            flags=flags,
        )

    def _flags_of(
        self,
        message: pb.GenerateRequest,
        key: ApiKey,
        resumed: ResumePoint | None,
        tokens: ResumeTokens | None,
    ) -> tuple[str, ...]:
        """Return the changes of settings that a request gets; a stream that is gone on with has those with
        which it began, as far as they are known here. Raises InvalidRequest for a token that is not its
        own."""
        flags = self._registry.flags
        if resumed is not None and tokens is not None:
            return flags.versions_of(tokens.read(resumed).flags)
        if not flags.are_in_force:
            return ()

        def model() -> str:
            return message.model or self._config.default_model or self._registry.only_model()

        agent = read_agent_hints(message)
        session = read_sticky_key(message) or ("" if agent is None else agent.job) or call_identity().token
        return flags.versions_for(key.tenant, model, f"{key.tenant}\0{session}")

    def check_room(self, key: ApiKey, count: int = 1) -> None:
        """Raise why nothing of this key can be taken now, whatever it asks for: before that is read."""
        self._key_gate.check_rate(key)
        self._registry.check_room(key.tenant, count)

    def check_place(self, key: ApiKey) -> None:
        """Raise why no stream of this key can be gone on with now: its request has been counted already."""
        self._registry.check_room(key.tenant, 1)

    def check_rate(self, key: ApiKey) -> None:
        """Raise LimitReached where the key's calls of this minute are used up: before anything is read."""
        self._key_gate.check_rate(key)

    def count_refused(self, key: ApiKey | None, error: PenstockError) -> None:
        """Count a call of the key, None for an unknown one, that is refused for what it asks."""
        if key is not None:
            self._key_gate.count_refused(key, error)

    async def open_sessions(
        self,
        key: ApiKey,
        choices: Choices,
        *,
        call_remaining_s: float | None = None,
        cache_salt: str = "",
        resumed: ResumePoint | None = None,
    ) -> list[Session]:
        """Start what a call asks for: all of it or, raising why, nothing. `call_remaining_s`: a gRPC
        deadline. `resumed`: where a stream is gone on with, of which the key has counted all."""
        if resumed is None:
            self.check_room(key, len(choices))
        else:
            self.check_place(key)
        requests: list[Request] = []
        for prompt in choices.prompts:
            tokens = None
            if prompt.resumable or resumed is not None:
                tokens = ResumeTokens.of(self._config.fleet_key, key, prompt, cache_salt)
            valid = self._read(prompt, key, cache_salt, self._flags_of(prompt, key, resumed, tokens))
            if tokens is not None:
                valid = resumable_request(valid, len(choices), tokens, resumed)
            self._registry.check_size(valid)
            requests += choices.share(prompt, valid, _draw_seed)
        came_s, live = arrived_s(), self._registry.live_count
        budgets = [
            Budget.of(
                request,
                self._config,
                call_remaining_s,
                arrived_s=came_s,
                live=ahead,
                ends=None if request.resumed is None else request.resumed.deadline(),
            )
            for ahead, request in enumerate(requests, start=live)
        ]
        for budget in budgets:
            budget.total.check("gateway")  # it may have passed while the body came
        if resumed is not None:
            allowances = [Allowance(CountedElsewhere(), 0, 0, 0)]
        else:
            allowances = await self._key_gate.admit(key, requests, min(budget.total for budget in budgets))
        return await self._open_admitted(key, requests, budgets, allowances)

    async def _open_admitted(
        self,
        key: ApiKey,
        requests: Sequence[Request],
        budgets: Sequence[Budget],
        allowances: Sequence[Allowance],
    ) -> list[Session]:
        """Start what its key allows; raises why there is no room or no time, and then gives it back."""
        try:
            hardness = await self._registry.estimate_hardness(requests[0], budgets[0])
            self._registry.check_room(key.tenant, len(requests))  # others may have come meanwhile
            admitted = list(zip(requests, budgets, allowances, strict=True))
            return self._registry.open_sessions(admitted, hardness)
        except BaseException as error:
            # Who asks for what cannot be had, or not in its time, has asked: else asking so would be free.
            refused = isinstance(error, DeadlineExpired | Overloaded | InvalidRequest | TooLarge)
            counted = refused and not isinstance(error, LimitReached)
            if isinstance(error, DeadlineExpired | Overloaded | NotFound) and counted:
                self._registry.flags.record_refused(requests[0].flags)
            for allowance in allowances:
                allowance.undo(counted=counted)
            if isinstance(error, PenstockError) and allowances:
                error.counted = counted
            raise


def _draw_seed() -> int:
    return CHANCE.bits(SEED_BITS)


def record_refusal(error: PenstockError, key: ApiKey | None = None) -> Outcome:
    """Count a request that never became a session; it ends in one outcome too. `key` is whose it is, None
    where that is not known."""
    error.hop = error.hop or "gateway"
    outcome = Outcome.of(error)
    identity, tenant = call_identity(), "" if key is None else key.tenant
    count_outcome(outcome, endpoint=identity.endpoint, tenant=tenant)
    log.info(
        "request_refused",
        call=identity.client_id or identity.token,
        tenant=tenant,
        outcome=outcome.word,
        error=str(error),
    )
    return outcome
