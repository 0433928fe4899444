"""A request before its route: ask a retriever and a tokenizer, elsewhere again when one fails."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

from services.gateway.fleet.model_identity import ModelIdentity, awaited_model
from services.gateway.fleet.request_client import unexpected_answer
from services.gateway.fleet.route_trials import speaks_against
from services.gateway.fleet.waiting import wait_for_instances
from services.gateway.prompt.role_asker import AskTurn, RoleAsker
from services.gateway.question.searched_question import searched_question
from services.gateway.regions.regions import preference
from services.gateway.request.prompt_passages import joined_warnings, near_places, standing_order
from services.gateway.request.request import Request
from services.gateway.request_scope import RequestScope
from services.gateway.scope.session_state import is_final
from shared.blocks.block_hash import BlockHasher
from shared.bus.fleet import InstanceView
from shared.deadline import Deadline
from shared.degradation import DegradationLevel
from shared.errors import InvalidRequest, NoAnswer, PenstockError, Unavailable
from shared.messages import (
    NO_THINKING,
    ChatTurn,
    Message,
    PromptThinking,
    Retrieve,
    Retrieved,
    ScoredPassage,
    Spans,
    Tokenize,
    Tokenized,
    TrimmedPart,
    pack_ids,
    unpack_hashes,
    unpack_ids,
)
from shared.text.passage_room import fitting_places, utf8_bytes
from shared.text.tool_formats import FORMATS, ToolFormat
from shared.text.vocabulary import check_vocabulary
from shared.trimming.kept_text import WHOLE, are_spans_of

MAX_ASKS = 4
"""The number of times that a role is asked before the request fails; an instance that failed is not asked
again for a moment."""
MAX_IDS_NAMED_HERE = 4096
"""The longest prompt of ids that the gateway checks and hashes itself, which takes 0.2 ms at most; longer
ones are left to a tokenizer's threads."""
NOT_RETRIEVED = Retrieved((), degraded="retrieval", embed_us=0, search_us=0)
"""The result where no retriever answered in its share, or none was asked."""
FEWER_PASSAGES = "retrieval depth"
IMPOSSIBLE_COUNT = 1 << 31
"""A count of what was left out that a tokenizer cannot mean."""
DEPTH_SHARE = 0.5
"""The share of the asked passages that is taken where there are to be fewer; at least one."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt as ids, with the names of its full blocks. `tool_format`: how the model was told to call
    tools, None where it was not; `marker_ids` are those of its markers that are special tokens.
    `passage_places`: of each passage its place in the prompt, from 1, or 0 where it is not in the prompt;
    `passage_spans`: what of each stands there, WHOLE for all of it. `trimmed` was left out of it, and
    of the tools all but those of `tool_places`, () for none. `thinking`: how the model of a chat thinks
    before it answers."""

    token_ids: tuple[int, ...]
    block_hashes: tuple[bytes, ...]
    tool_format: ToolFormat | None = None
    marker_ids: Mapping[str, int] = field(default_factory=dict)
    passage_places: tuple[int, ...] = ()
    thinking: PromptThinking = NO_THINKING
    passage_spans: tuple[Spans, ...] = ()
    trimmed: tuple[TrimmedPart, ...] = ()
    tool_places: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FoundPassages:
    """Answer of a retriever. `retriever`: who found the passages, "" for nobody. `query`: what was searched
    for, where that is not the question or its beginning."""

    retrieved: Retrieved
    retriever: str = ""
    query: str = ""


class Preprocessor:
    def __init__(self, scope: RequestScope) -> None:
        self._context = scope.context
        self._fleet = scope.context.fleet
        self._served = scope.context.served
        self._config = scope.config
        self._breakers = scope.context.breakers
        self._request_id = scope.request_id
        self._state = scope.state
        self._timeline = scope.timeline
        self._request_client = scope.request_client
        self._budget = scope.budget
        self._asker = RoleAsker(
            self._breakers, self._request_id, MAX_ASKS, scope.rotation, preference(scope.context.regions)
        )
        self._read: tuple[Tokenize, Prompt] | None = None
        """The last tokenization: what was asked, and its answer."""
        self._query = ""
        """The query of the search, where that is not the question."""

    async def admit_request(self, request: Request) -> ModelIdentity:
        """The model, once there is a worker of it; raises NotFound when it is not served, Overloaded where
        too many wait for a worker while those of other models are there."""
        instances = self._fleet.instances

        def workers() -> Sequence[InstanceView]:
            return () if self._served.waits_for_worker(request.model) else instances("decode")

        if not workers():
            others_are_served = bool(instances("decode"))
            away = awaited_model(request.model, instances)
            with self._context.away_models.waiting(away, others_are_served=others_are_served):
                deadline = Deadline.after(0.0 if request.may_fall_back else self._wait_s())
                await wait_for_instances(workers, "decode", deadline, model=request.model)
        return self._served.find_model(request.model, request.tenant)

    async def retrieve_passages(
        self,
        request: Request,
        model: ModelIdentity,
        level: DegradationLevel,
        *,
        send_first_passages: bool = False,
    ) -> FoundPassages:
        """Passages and what was degraded: where the request allows it, fewer or none under pressure, and none
        rather than late ones. `send_first_passages`: the session is to hear of them before they are
        reranked."""
        use = request.retrieval
        wanted = use.passages
        if use.may_degrade and level >= DegradationLevel.RETRIEVAL:
            return FoundPassages(NOT_RETRIEVED)
        if use.may_degrade and level >= DegradationLevel.RETRIEVAL_DEPTH:
            wanted = math.ceil(DEPTH_SHARE * wanted)
        share_s = self._config.retrieve_share * self._budget.first_token_s
        end = self._budget.first_token.shrink(share_s) if use.may_degrade else self._budget.first_token
        asked = await searched_question(request, self._context.question_rewriter, end)
        question = Retrieve(
            asked.query,
            wanted,
            use.may_degrade,
            rerank=not (use.may_degrade and (level >= DegradationLevel.RERANK or not self._config.rerank)),
            corpus=use.corpus,
            tenant=request.tenant,
            filters=use.filters,
            send_first_passages=send_first_passages,
            score_threshold=use.score_threshold,
        )
        differs = not request.question.lstrip().startswith(asked.query)
        self._query = asked.query if differs else ""
        found, retriever = await self._ask_retriever(question, model, share_s, end)
        fewer = FEWER_PASSAGES if wanted < use.passages else ""
        warning = joined_warnings(asked.warning, found.warning)
        return FoundPassages(
            replace(found, degraded=found.degraded or fewer, warning=warning),
            retriever,
            self._query if retriever else "",
        )

    async def _ask_retriever(
        self, question: Retrieve, model: ModelIdentity, share_s: float, end: Deadline
    ) -> tuple[Retrieved, str]:
        """Passages with what the retriever left out itself, and its instance."""
        try:
            wait_s = 0.0 if question.may_degrade else self._wait_s()
            answer, retriever = await self._ask_any("retriever", question, model, share_s, end, wait_s)
        except PenstockError as error:
            if is_final(error) or not question.may_degrade or self._budget.first_token.expired():
                raise
            return NOT_RETRIEVED, ""
        if not isinstance(answer, Retrieved):
            raise unexpected_answer(answer, "retriever")
        return answer, retriever

    def cancel_asks(self) -> None:
        """Cancel all asks: their answers are not needed any more."""
        for holder in sorted(self._state.holders):  # in one order, which a set of words has not
            self._cancel_ask(holder)

    async def tokenize_prompt(
        self,
        request: Request,
        passages: tuple[ScoredPassage, ...],
        layout: str,
        model: ModelIdentity,
        *,
        room_tokens: int,
    ) -> Prompt:
        """The prompt's ids, and its blocks' names for workers of `model` and of the KV `layout`; of the
        passages that are near the best one, as many as fit into a message, and into a prompt of
        `room_tokens`. What was tokenized last is not tokenized again.

        Raises InvalidRequest for what the model's tokenizer does not take.
        """
        if request.token_ids is not None and len(request.token_ids) <= MAX_IDS_NAMED_HERE:
            vocab_tokens = max(
                (view.heartbeat.tokenizer.vocab_tokens for view in self._serving("tokenizer", model)),
                default=0,
            )
            if vocab_tokens:
                seed = self._hasher.seed(layout, request.cache_scope, model.adapter.digest)
                return self._name_blocks(request.token_ids, vocab_tokens, seed)
        near = near_places(passages, self._config.passage_least_share)
        sizes = [utf8_bytes(passages[place].text) for place in near]
        taken_bytes = request.prompt_bytes + utf8_bytes(self._query)
        room_bytes = self._context.prompt_limits.max_text_bytes - taken_bytes if passages else 0
        sent = [near[at] for at in fitting_places(sizes, room_bytes)]
        asked = replace(
            tokenize_message(request, [passages[place] for place in sent], self._query),
            layout=layout,
            tenant=request.cache_scope,
            adapter=model.adapter.digest,
            room_tokens=room_tokens,
            context_tokens=self._served.longest_context(model),
        )
        if self._read is not None and self._read[0] == asked:
            return self._read[1]
        share_s = self._config.tokenize_share * self._budget.first_token_s
        end = self._budget.first_token
        wait_s = 0.0 if request.may_fall_back else self._wait_s()
        answer, _ = await self._ask_any("tokenizer", asked, model, share_s, end, wait_s)
        if not isinstance(answer, Tokenized) or not is_possible(
            answer, [passages[at].text for at in sent], len(asked.tools)
        ):
            raise unexpected_answer(answer, "tokenizer")
        places = dict(zip(sent, answer.passage_places, strict=True))
        spans = dict(zip(sent, answer.passage_spans, strict=False))
        if not answer.token_ids:
            raise InvalidRequest("the prompt has no tokens: send some text", hop="tokenizer")
        prompt = Prompt(
            tuple(unpack_ids(answer.token_ids)),
            tuple(unpack_hashes(answer.block_hashes)),
            FORMATS.get(answer.tool_format),
            dict(answer.marker_ids),
            tuple(places.get(place, 0) for place in range(len(passages))),
            answer.thinking if request.chat else NO_THINKING,
            tuple(spans.get(place, WHOLE) for place in range(len(passages))),
            answer.trimmed,
            answer.tool_places,
        )
        self._read = asked, prompt
        return prompt

    @property
    def _hasher(self) -> BlockHasher:
        return BlockHasher.of(self._config.fleet_key)

    def _name_blocks(self, token_ids: tuple[int, ...], vocab_tokens: int, seed: bytes) -> Prompt:
        """Return what a tokenizer would answer to ids, without the way there."""
        check_vocabulary(token_ids, vocab_tokens)
        return Prompt(token_ids, tuple(self._hasher.block_hashes(token_ids, seed)))

    def _serving(self, role: str, model: ModelIdentity) -> Sequence[InstanceView]:
        return self._served.serving(role, model)

    def _wait_s(self) -> float:
        """Return how long to wait for a role without a ready instance: one may be restarting."""
        remaining_s = self._budget.first_token.remaining_s()
        return min(self._config.admit_wait_s, self._config.place_share * remaining_s)

    async def _ask_any(
        self, role: str, message: Message, model: ModelIdentity, share_s: float, end: Deadline, wait_s: float
    ) -> tuple[Message, str]:
        """Ask one instance after another until one answers or `end`; return the answer and who gave it."""

        async def ask(view: InstanceView, turn: AskTurn) -> tuple[Message, str]:
            return await self._ask_one(view, message, turn), view.heartbeat.instance

        views = partial(self._serving, role, model)
        return await self._asker.ask_any(role, views, ask, share_s=share_s, end=end, wait_s=wait_s)

    async def _ask_one(self, view: InstanceView, message: Message, turn: AskTurn) -> Message:
        """The answer of one instance; until it has answered, it holds something of the request.

        Its breaker hears of an answer, of a break, and of a silence as long as no worker may be silent: the
        share of a short request is none.
        """
        role, instance = view.heartbeat.role, view.heartbeat.instance
        trial = self._breakers.begin_trial(view, self._request_id)
        enough = Deadline.after(self._config.ask_timeout_s)
        holder = self._state.begin_ask(role, instance)
        self._timeline.note_asked(role, instance)
        try:
            answer = await self._request_client.ask_instance(
                role,
                instance,
                message,
                turn.until,
                epoch=self._state.asks,
                work_ends=turn.end,
                go_on=turn.go_on,
            )
            trial.succeed()
        except PenstockError as error:
            if is_final(error):
                trial.succeed()
            elif speaks_against(error) and (enough.expired() or not isinstance(error, NoAnswer)):
                trial.fail(silent=isinstance(error, NoAnswer | Unavailable))
            if not isinstance(error, NoAnswer):
                self._state.let_go(*holder)
            elif not self._budget.first_token.expired():
                self._cancel_ask(holder)
            raise
        finally:
            trial.end()
        self._state.let_go(*holder)
        return answer

    def _cancel_ask(self, holder: tuple[str, str]) -> None:
        """Cancel at an instance that did not answer in its share; meanwhile the next one is asked."""
        self._state.let_go(*holder)
        work = self._context.canceller.cancel_holders(
            self._request_id, self._state.asks, [holder], "replaced"
        )
        self._context.tasks.start(f"cancel-{self._request_id}", work)


def tokenize_message(request: Request, passages: Sequence[ScoredPassage], query: str = "") -> Tokenize:
    """Return what to ask a tokenizer; with retrieval, it makes one of the last user turn and the passages,
    which are shortened for `query`, or for that turn where it is ""."""
    budgets = request.trimming
    if budgets.tool_tokens:
        budgets = replace(budgets, tool=request.tool_use.name)
    trimming = replace(budgets, query=query) if budgets.compresses else budgets.of_chat
    if request.token_ids is not None:
        return Tokenize(token_ids=pack_ids(request.token_ids))
    if not request.retrieval.passages:
        if not request.chat:
            return Tokenize(text=request.text)
        return Tokenize(
            chat=request.chat,
            template_optional=request.template_optional,
            tools=request.tool_use.tools,
            reasoning_effort=request.thinking_use.effort,
            trimming=budgets.of_chat,
        )
    return Tokenize(
        chat=(*request.chat[:-1], ChatTurn("user", request.question)),
        passages=tuple(passage.text for passage in passages),
        passage_order=standing_order(passages, request.retrieval.order),
        max_passage_tokens=request.retrieval.max_tokens,
        template_optional=request.template_optional,
        tools=request.tool_use.tools,
        reasoning_effort=request.thinking_use.effort,
        trimming=trimming if passages else budgets.of_chat,
    )


def is_possible(answer: Tokenized, sent: Sequence[str], tools: int) -> bool:
    """Whether an answer can be one to these passages and so many tools: its places go out to clients, who cut
    texts by them, and say what may be called."""
    told = (-1, *answer.tool_places, tools)
    if answer.tool_places and not all(one < other for one, other in pairwise(told)):
        return False
    if len(answer.passage_places) != len(sent) or len(answer.passage_spans) not in (0, len(sent)):
        return False
    counts = [count for part in answer.trimmed for count in (part.count, part.tokens)]
    if not all(0 <= count < IMPOSSIBLE_COUNT for count in counts):
        return False
    return all(map(are_spans_of, answer.passage_spans, sent))
