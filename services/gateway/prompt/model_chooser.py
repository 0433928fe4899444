"""Choose which model answers a request: by a virtual name's rules, and by who can take it now.

Where the chosen model is down, shed or too slow, the next one that the request may fall back to is tried; the
workers' own word comes later, and then the session asks for the next one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

from services.gateway.admission.admission import TTFT
from services.gateway.context import SessionContext
from services.gateway.prompt.admission_gate import AdmissionGate, TooSlow
from services.gateway.prompt.difficulty_asker import DifficultyAsker
from services.gateway.request.hardness import Hardness
from services.gateway.request.model_choice import CONTEXT, DOWN, FAILED, SHED, SLOW, ModelChoice
from services.gateway.request.request import Request
from services.gateway.scope.budget import Budget
from services.gateway.virtual.model_shares import part_of, pick_share
from services.gateway.virtual.rule_facts import RuleFacts
from services.gateway.virtual.rule_match import first_rule, needs_classifier
from shared.deadline import SYSTEM_CLOCK
from shared.errors import (
    ContextExceeded,
    DeadlineExpired,
    InvalidRequest,
    NoPassages,
    NotFound,
    Overloaded,
    PenstockError,
    StreamLost,
    Unavailable,
)
from shared.files.virtual_model import Cascade, ModelRule, VirtualModel
from shared.roles import OPTIONAL_ROLES
from shared.sampling.parameters import NO_LOGPROBS
from shared.seams.chance import CHANCE
from shared.telemetry import metrics

KEY_BYTES = 8
"""The bytes of a key that is drawn for a request that has none."""


class ModelChooser:
    def __init__(self, context: SessionContext, gate: AdmissionGate) -> None:
        self._context = context
        self._gate = gate
        self._virtual_models = context.virtual_models
        self._difficulty = DifficultyAsker(context)

    def concerns(self, request: Request) -> bool:
        """Whether there is anything to choose: all that a request costs which names a real model."""
        if request.fallback is not None and request.fallback.allowed:
            return True
        return self._virtual_models.find(request.model) is not None

    async def estimate(self, request: Request, budget: Budget) -> Hardness | None:
        """Return how hard the question is, where the rule that counts depends on it; else None."""
        virtual = self._virtual_models.find(request.model)
        head = None if virtual is None else self._virtual_models.head_of(virtual)
        if (
            virtual is None
            or head is None
            or not needs_classifier(virtual, self._facts(request, budget, None))
        ):
            return None
        return await self._difficulty.estimate(request, budget, head)

    def choose(self, request: Request, budget: Budget, hardness: Hardness | None = None) -> Request:
        """Return the request for the model that answers it, with why.

        Raises InvalidRequest for a fallback to nobody, and where no model takes it what the first one says.
        """
        began_s = SYSTEM_CLOCK.monotonic_s()
        chosen = self._first_taken(request, budget, self._by_rules(request, budget, hardness), waits=True)
        took_s = SYSTEM_CLOCK.monotonic_s() - began_s
        metrics.MODEL_CHOICE_SECONDS.observe(took_s)
        choice = chosen.model_choice
        assert choice is not None
        if request.sampling.prompt_logprobs != NO_LOGPROBS:  # the client has them before the first token
            choice = choice.settle()
        took_us = round(took_s * 1e6) + (0 if hardness is None else hardness.took_us)
        return replace(chosen, model_choice=replace(choice, took_us=took_us))

    def follow(self, request: Request, budget: Budget, chosen: Request) -> Request:
        """Return another request of the same call for the model of `chosen`. Raises why it is not taken."""
        followed = replace(request, model=chosen.model, model_choice=chosen.model_choice)
        self._gate.check_request(followed, budget)
        return followed

    def choose_next(
        self, request: Request, budget: Budget, error: PenstockError, *, routed: bool
    ) -> Request | None:
        """Return the request for another model after this one has ended it by `error`, None where that is its
        end. `routed`: workers had it.

        Where no other takes it, it stays with this one, if that may still come.
        """
        choice = request.model_choice
        if choice is None or not choice.left or not may_fall_back(error):
            return None
        following = choice.next(why_passed_over(error, routed=routed))
        try:
            return self._first_taken(request, budget, following, waits=False)
        except PenstockError:
            if isinstance(error, TooSlow | Unavailable):
                return replace(request, model_choice=choice.settle())
            return None

    def escalate(self, request: Request, budget: Budget) -> Request | None:
        """Return the request for the model that answers anew, None where it cannot in time."""
        choice, cascade = request.model_choice, request.cascade
        assert choice is not None
        assert cascade is not None
        tried = replace(request, model=cascade.to, model_choice=choice.escalate(cascade))
        try:
            self._check_there(tried)
            self._gate.check_request(tried, budget)
        except PenstockError:
            return None
        return tried

    def _cascade_of(self, request: Request, rule: ModelRule, model: str) -> Cascade | None:
        """Return who answers anew. Nobody does where the client wants to have what it can have at once, or
        more than is held for it."""
        said, sampling = request.fallback, request.sampling
        if rule.cascade is None or rule.cascade.to == model or (said is not None and not said.allowed):
            return None
        wants_parts = request.resumable or sampling.prompt_logprobs != NO_LOGPROBS
        fits = sampling.max_tokens <= self._context.config.max_buffered_tokens
        return rule.cascade if fits and not wants_parts else None

    def _facts(self, request: Request, budget: Budget, hardness: Hardness | None) -> RuleFacts:
        facts = RuleFacts(
            request,
            1000 * budget.first_token.remaining_s(),
            cache(lambda model: self._predict_ms(model, request, facts)),
            None if hardness is None else hardness.probability,
        )
        return facts

    def _by_rules(self, request: Request, budget: Budget, hardness: Hardness | None) -> ModelChoice:
        """Return what the rules say, or the request itself, whoever can take it."""
        virtual = self._virtual_models.find(request.model)
        if virtual is None:
            return _named(request)
        facts = self._facts(request, budget, hardness)
        rule = first_rule(virtual, facts)
        share = pick_share(rule.to, virtual.name, _sticky_key(request))
        left = _fallback_of(request, virtual, rule)
        return ModelChoice(
            asked=virtual.name,
            model=share.model,
            rule=rule.name,
            share=part_of(share, rule.to),
            left=tuple(model for model in left if model != share.model),
            max_ttft_ms=virtual.max_ttft_ms,
            hardness=facts.hardness,
            note="" if hardness is None else hardness.note,
            cascade=self._cascade_of(request, rule, share.model),
        )

    def _first_taken(self, request: Request, budget: Budget, choice: ModelChoice, *, waits: bool) -> Request:
        """Return the request for the first model of `choice` that can take it now.

        Where none can, one that is only slower than the virtual name likes is taken after all, and with
        `waits` the first one is waited for where it is down, as if it had been named. Raises what that says.
        """
        refusals: list[tuple[ModelChoice, PenstockError]] = []
        while True:
            tried = replace(request, model=choice.model, model_choice=choice)
            try:
                self._check_there(tried)
                self._gate.check_request(tried, budget)
            except PenstockError as error:
                if not may_fall_back(error):
                    raise
                refusals.append((choice, error))
                if not choice.left:
                    break
                choice = choice.next(why_passed_over(error))
            else:
                return tried if choice.left else replace(tried, model_choice=choice.settle())
        for refused, why in refusals:
            if isinstance(why, TooSlow):
                return self._settled(request, budget, refused)
        first, why = refusals[0]
        if waits and isinstance(why, Unavailable | NotFound):
            return self._settled(request, budget, first)
        raise why

    def _settled(self, request: Request, budget: Budget, choice: ModelChoice) -> Request:
        settled = replace(request, model=choice.model, model_choice=choice.settle())
        self._gate.check_request(settled, budget)
        return settled

    def _check_there(self, request: Request) -> None:
        """Raise Unavailable or NotFound where nobody has the model now."""
        served = self._context.served
        if served.waits_for_worker(request.model):
            raise Unavailable(f"no decode instance of the model {request.model!r} is ready", hop="decode")
        served.find_model(request.model, request.tenant)

    def _predict_ms(self, model: str, request: Request, facts: RuleFacts) -> float:
        served = self._context.served
        if served.waits_for_worker(model):
            return math.inf
        try:
            found = served.find_model(model, request.tenant)
        except InvalidRequest:
            return math.inf
        return 1000 * self._gate.predict_ttft_s(found, request, facts.tokens)


def may_fall_back(error: PenstockError) -> bool:
    """Whether another model may do better than the one that ended with `error`."""
    if error.hop in OPTIONAL_ROLES or isinstance(error, NoPassages | StreamLost):
        return False
    return isinstance(error, Overloaded | Unavailable | DeadlineExpired | ContextExceeded | NotFound)


def why_passed_over(error: PenstockError, *, routed: bool = False) -> str:
    """Return the word for it. `routed`: workers had the request."""
    if isinstance(error, ContextExceeded):
        return CONTEXT
    if isinstance(error, TooSlow | DeadlineExpired):
        return SLOW
    if isinstance(error, Overloaded):
        return SLOW if error.reason == TTFT else SHED
    return FAILED if routed else DOWN


def _named(request: Request) -> ModelChoice:
    """The choice of a client that names a model and those to go on to."""
    assert request.fallback is not None
    models = request.fallback.models
    if not models:
        raise InvalidRequest(
            f"fallback names no model, and {request.model or 'the default model'} is no virtual name that "
            "has some: send fallback.models, or leave fallback out"
        )
    return ModelChoice(
        request.model, request.model, left=tuple(each for each in models if each != request.model)
    )


def _fallback_of(request: Request, virtual: VirtualModel, rule: ModelRule) -> tuple[str, ...]:
    said = request.fallback
    if said is None:
        return virtual.fallback_of(rule)
    if not said.allowed:
        return ()
    return said.models or virtual.fallback_of(rule)


def _sticky_key(request: Request) -> str:
    """The key by which the request keeps to one of several models: its own within its tenant, else the
    tenant's, else one of its own."""
    if request.sticky_key:
        return f"{request.tenant}\0{request.sticky_key}"
    return request.tenant or CHANCE.hex_digits(KEY_BYTES)
