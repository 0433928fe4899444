"""Whether a request that has just come is taken: decided at once, without waiting for anybody."""

from __future__ import annotations

import math
from collections.abc import Sequence

from services.gateway.admission.admission import (
    check_pressure,
    check_ttft,
    check_wait,
    predict_ttft_s,
    sheds_class,
)
from services.gateway.admission.ticket import CLASSES, LOWEST_CLASS
from services.gateway.context import SessionContext
from services.gateway.fleet.model_identity import ModelIdentity
from services.gateway.fleet.prompt_path import local_first_token_s
from services.gateway.fleet.sent_load import LoadedView
from services.gateway.request.prompt_passages import prompt_room_tokens
from services.gateway.request.request import Request
from services.gateway.scope.budget import Budget
from shared.blocks.block_hash import HASH_BLOCK_TOKENS
from shared.errors import ContextExceeded, InvalidRequest, Overloaded

TOO_SLOW = "limit"
"""Why a model is passed over that keeps the deadline, but not the limit of the virtual name."""


class TooSlow(Overloaded):
    """The first token is predicted later than the virtual name allows while another model is left."""


class AdmissionGate:
    def __init__(self, context: SessionContext) -> None:
        self._context = context

    def check_request(self, request: Request, budget: Budget) -> None:
        """Raises NotFound for a model that is not served, Overloaded for what cannot be served in time.

        Without a decode worker of its model nobody can tell; the request waits for one then.
        """
        served = self._context.served
        if served.waits_for_worker(request.model):
            return
        model = served.find_model(request.model, request.tenant)
        self._check_class(model, request)
        self.check_turn(model, request, budget)
        self.check_prompt(model, request, budget)

    def check_size(self, request: Request) -> None:
        """Raises ContextExceeded for a prompt that is too large to be read and, as its size proves, longer
        than the model's context, else InvalidRequest for one that is too large."""
        try:
            self._context.prompt_limits.check_request(request)
        except InvalidRequest:
            self._check_proven_tokens(request)
            raise

    def _check_proven_tokens(self, request: Request) -> None:
        served = self._context.served
        is_virtual = self._context.virtual_models.find(request.model) is not None
        if is_virtual or served.waits_for_worker(request.model):
            return
        model = served.find_model(request.model, request.tenant)
        context_tokens, ids = self._context_tokens(model), request.token_ids
        reaches = [view.heartbeat.tokenizer.most_token_bytes for view in served.serving("tokenizer", model)]
        reach = max(reaches, default=0) if all(reaches) else 0
        tokens = len(ids) if ids is not None else -(-request.sure_bytes // reach) if reach else 0
        if context_tokens and tokens >= context_tokens:
            raise ContextExceeded.of(tokens, context_tokens, at_least=ids is None)

    def check_tokens(self, model: ModelIdentity, tokens: int) -> None:
        """Raises ContextExceeded or TooLarge for a prompt that no worker can take."""
        context_tokens = self._context_tokens(model)
        if context_tokens and tokens >= context_tokens:
            raise ContextExceeded.of(tokens, context_tokens)
        self._context.prompt_limits.check_tokens(tokens)

    def room_tokens(self, model: ModelIdentity, max_tokens: int) -> int:
        """Return how long a prompt may become by its passages, before an answer of `max_tokens`."""
        most_tokens = self._context.prompt_limits.max_ids
        return prompt_room_tokens(self._context_tokens(model), max_tokens, most_tokens)

    def check_turn(self, model: ModelIdentity, request: Request, budget: Budget) -> None:
        """Raises Overloaded when the request's turn at decode is not expected in time."""
        wait_s = self._context.admission_queue.expected_wait_s(
            model, CLASSES[request.priority], request.share
        )
        check_wait(wait_s, budget.first_token.remaining_s())

    def check_prompt(
        self,
        model: ModelIdentity,
        request: Request,
        budget: Budget,
        tokens: int = 0,
        block_hashes: Sequence[bytes] = (),
    ) -> None:
        """Raises Overloaded or DeadlineExpired when the first token cannot come in time, TooSlow where it can
        and another model is to be tried first.

        Without the prompt, by what is queued alone.
        """
        share = request.share.for_workers(self._context.config.fleet_key)
        remaining_s = budget.first_token.remaining_s()
        local_s = self._local_s(model, tokens, block_hashes)
        check_ttft(
            self._prefills(model),
            remaining_s,
            tokens,
            block_hashes,
            share,
            local_s,
            in_turn=CLASSES[request.priority] != LOWEST_CLASS,
        )
        choice = request.model_choice
        if choice is None or choice.max_ttft_ms is None:
            return
        predicted_ms = 1000 * self.predict_ttft_s(model, request, tokens, block_hashes)
        if predicted_ms > choice.max_ttft_ms:
            raise TooSlow(
                f"the first token of {model.served_name} would take about {predicted_ms:.0f} ms, and "
                f"{choice.asked} allows {choice.max_ttft_ms:.0f} ms: retry later",
                hop="prefill",
                retry_after_ms=max(1, math.ceil(predicted_ms - choice.max_ttft_ms)),
                reason=TOO_SLOW,
            )

    def predict_ttft_s(
        self, model: ModelIdentity, request: Request, tokens: int, block_hashes: Sequence[bytes] = ()
    ) -> float:
        """Return how long the first token would take: the turn at decode, then the prompt behind those that
        are queued."""
        share = request.share.for_workers(self._context.config.fleet_key)
        queue = self._context.admission_queue
        wait_s = queue.expected_wait_s(model, CLASSES[request.priority], request.share)
        local_s = self._local_s(model, tokens, block_hashes)
        return wait_s + predict_ttft_s(self._prefills(model), tokens, block_hashes, share, local_s)

    def _local_s(self, model: ModelIdentity, tokens: int, block_hashes: Sequence[bytes]) -> float:
        """Return when a decode worker would have the first token that computed all of the prompt itself."""
        soonest_s = math.inf
        for view in self._loaded("decode", model):
            uncached = max(1, tokens - HASH_BLOCK_TOKENS * view.overlap(block_hashes))
            if uncached <= self._context.config.local_prefill_tokens:
                rate = view.heartbeat.decode.prompt_tokens_per_s
                soonest_s = min(soonest_s, local_first_token_s(view.heartbeat, uncached, rate))
        return soonest_s

    def _prefills(self, model: ModelIdentity) -> list[LoadedView]:
        return self._loaded("prefill", model)

    def _loaded(self, role: str, model: ModelIdentity) -> list[LoadedView]:
        return [self._context.sent_load.with_sent(view) for view in self._context.served.serving(role, model)]

    def _context_tokens(self, model: ModelIdentity) -> int:
        return self._context.served.longest_context(model)

    def _check_class(self, model: ModelIdentity, request: Request) -> None:
        """The pressure is measured for those alone whose class is shed."""
        pressure, level = self._context.pressure, self._context.degradation.of(model)
        if sheds_class(level, CLASSES[request.priority]):
            check_pressure(pressure.of(model, request.share), pressure.usual_budget_s)
