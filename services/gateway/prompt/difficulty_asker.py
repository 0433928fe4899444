"""Estimate how hard a question is: by its words, or a retriever embeds it, and the head of the virtual name
reads the vector.

One retriever is asked, once, for a few milliseconds; without an answer no rule that asks holds.
"""

from __future__ import annotations

from services.gateway.context import SessionContext
from services.gateway.fleet.routing import cheapest_instance, leave_out, load_cost
from services.gateway.request.hardness import Hardness
from services.gateway.request.request import Request
from services.gateway.scope.budget import Budget
from shared.bus.subjects import inbox
from shared.deadline import SYSTEM_CLOCK
from shared.errors import NoAnswer, PenstockError
from shared.files.difficulty_head import DifficultyHead
from shared.files.word_features import MAX_READ_CHARS
from shared.messages import Embed, Embedded, unpack_vector
from shared.seams.chance import CHANCE

BUDGET_SHARE = 0.1
"""The most of what is left until the deadline of the first token that the estimate may take."""
ROLE = "retriever"


class DifficultyAsker:
    def __init__(self, context: SessionContext) -> None:
        self._context = context

    async def estimate(self, request: Request, budget: Budget, head: DifficultyHead) -> Hardness:
        """Return the estimate of `head`, or why there is none."""
        began_s = SYSTEM_CLOCK.monotonic_s()
        probability, note = None, ""
        question = request.question[:MAX_READ_CHARS]
        if not question.strip():
            note = "it has no question to be told hard or easy"
        elif head.reads_words:
            probability = head.probability_of(question)
        elif not (instance := self._embedding_instance(head)):
            note = f"no retriever with {head.embedder} tells how hard it is"
        else:
            probability, note = await self._ask(instance, question, budget, head)
        return Hardness(probability, note, round(1e6 * (SYSTEM_CLOCK.monotonic_s() - began_s)))

    def _embedding_instance(self, head: DifficultyHead) -> str:
        """Return the least loaded retriever that embeds as the head was trained, "" for none."""
        context = self._context
        views = [v for v in context.fleet.instances(ROLE) if v.heartbeat.model == head.embedder]
        trusted = leave_out(views, context.breakers.shunned(views, ""))
        return cheapest_instance(trusted, load_cost, 0)

    async def _ask(
        self, instance: str, question: str, budget: Budget, head: DifficultyHead
    ) -> tuple[float | None, str]:
        context = self._context
        wait_ms = context.config.classifier_wait_ms
        end = budget.first_token.shrink(
            min(wait_ms / 1000, BUDGET_SHARE * max(0.0, budget.first_token.remaining_s()))
        )
        ask_id = f"{context.instance}.{CHANCE.hex_digits(6)}.hard"
        envelope = context.bus.envelope(ask_id, 1, end, context.instance)
        try:
            answer = await context.bus.ask(inbox(ROLE, instance), Embed((question,)), envelope, end)
        except NoAnswer:
            return None, f"{instance} did not tell within {wait_ms:g} ms how hard it is"
        except PenstockError as error:
            return None, f"{instance} does not tell how hard it is ({error.code})"
        if not isinstance(answer, Embedded) or len(answer.vectors) != 1:
            return None, f"{instance} does not tell how hard it is"
        vector = unpack_vector(answer.vectors[0])
        if len(vector) != len(head.weights):
            return (
                None,
                f"{instance} embeds in {len(vector)} dimensions, and the classifier has {len(head.weights)}",
            )
        return head.probability(vector), ""
