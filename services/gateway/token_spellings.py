"""What token ids of a model stand for, asked of its tokenizers and kept."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from services.gateway.context import SessionContext
from services.gateway.model_identity import find_model
from services.gateway.placement import leave_out, load_cost, serving
from services.gateway.request_client import unexpected_answer
from shared.bus.fleet import InstanceView
from shared.bus.subjects import inbox
from shared.deadline import Deadline
from shared.errors import PenstockError, Unavailable
from shared.messages import SpellTokens, TokenSpellings, pack_ids

ASK_TIMEOUT_S = 2.0
MAX_ASKS = 3
"""How many tokenizers are asked, one after another, before there is no answer."""
MAX_KNOWN = 1 << 19
"""Ids of all models together; then all are asked for anew."""


class SpellingBook:
    def __init__(self, context: SessionContext) -> None:
        self._context = context
        self._known: dict[tuple[str, int], bytes] = {}
        self._turns = itertools.count()

    async def spellings_of(self, model: str, token_ids: Sequence[int]) -> list[bytes]:
        """One for each id. Raises what the last tokenizer that was asked failed with."""
        missing = [token_id for token_id in token_ids if (model, token_id) not in self._known]
        if missing:
            if len(self._known) + len(missing) > MAX_KNOWN:
                self._known.clear()
                missing = list(token_ids)
            spelled = await self._ask(model, missing)
            self._known.update(zip(((model, token_id) for token_id in missing), spelled, strict=True))
        return [self._known[model, token_id] for token_id in token_ids]

    async def _ask(self, model: str, token_ids: Sequence[int]) -> tuple[bytes, ...]:
        error: PenstockError = Unavailable("no tokenizer answered: retry later", hop="tokenizer")
        for view in self._in_order(model)[:MAX_ASKS]:
            deadline = Deadline.after(ASK_TIMEOUT_S)
            envelope = self._context.bus.envelope(deadline=deadline, origin=self._context.instance)
            subject = inbox("tokenizer", view.heartbeat.instance)
            try:
                answer = await self._context.bus.ask(
                    subject, SpellTokens(pack_ids(token_ids)), envelope, deadline
                )
            except PenstockError as failed:
                error = failed
                continue
            if not isinstance(answer, TokenSpellings) or len(answer.spellings) != len(token_ids):
                raise unexpected_answer(answer, "tokenizer")
            return answer.spellings
        raise error

    def _in_order(self, model: str) -> list[InstanceView]:
        """The tokenizers of the model, the least loaded first; among equals each has its turn."""
        instances = self._context.fleet.instances
        views = serving(instances("tokenizer"), "tokenizer", find_model(model, instances))
        trusted = list(leave_out(views, self._context.breakers.shunned(views, "")))
        first = next(self._turns) % max(1, len(trusted))
        return sorted(trusted[first:] + trusted[:first], key=load_cost)
