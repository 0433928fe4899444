"""A request on its way to its first route: model, passages, ids, and what its client is told of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import repeat

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.answer.answer_format import PLAIN_ANSWER, AnswerFormat
from services.gateway.fleet.default_sampling import resolve_sampling, sampling_in_force
from services.gateway.fleet.model_identity import ModelIdentity, with_adapter
from services.gateway.prompt.admission_gate import AdmissionGate
from services.gateway.prompt.answer_citing import AnswerCiting
from services.gateway.prompt.cached_response import CachedResponse
from services.gateway.prompt.preprocessor import FoundPassages, Preprocessor, Prompt
from services.gateway.prompt.request_hashes import RequestHashes
from services.gateway.prompt.warmer import Warmer
from services.gateway.request.prompt_passages import (
    check_found,
    joined_warnings,
    left_out_warning,
    near_places,
    retrieved_passage,
    trimmed_events,
)
from services.gateway.request.request import Request
from services.gateway.request.trimming_use import over_budget_warning
from services.gateway.request_scope import RequestScope
from services.gateway.scope.prompt_logprobs_buffer import PromptLogprobsBuffer, check_prompt_logprobs
from services.gateway.scope.report import count_degraded
from services.gateway.scope.session_state import RequestPhase
from services.gateway.scope.token_log import TokenLog
from shared.blocks.block_hash import BlockHasher
from shared.errors import InvalidRequest
from shared.messages import ResponseFound, Retrieved, ScoredPassage, Spans, TrimmedPart, unpack_ids
from shared.sampling.parameters import NO_LOGPROBS, TokenLogprob
from shared.text.tool_formats import FORMATS
from shared.trimming.kept_text import WHOLE

NOTHING_ASKED = Retrieved((), degraded="", embed_us=0, search_us=0)


@dataclass(frozen=True, slots=True)
class AdmittedRequest:
    """A request that is taken, with all of its sampling said, and the model that is to answer it."""

    request: Request
    model: ModelIdentity


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """The prompt as ids for workers of `layout`, made of what was found."""

    model: ModelIdentity
    prompt: Prompt
    layout: str
    found: Retrieved
    retriever: str
    retrieval_query: str
    """The query, as in `FoundPassages`."""
    prompt_places: tuple[int, ...]
    """The places of the passages found, as in `Prompt`."""
    passage_spans: tuple[Spans, ...]
    """Their parts that stand there, as in `Prompt`."""
    trimmed: tuple[TrimmedPart, ...]
    warning: str


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """A request that can be routed: `request` as its model's tokenizer has made it, `told` as its client
    hears of it. `answer_format`: how the text of its answer is read."""

    request: Request
    model: ModelIdentity
    token_ids: tuple[int, ...]
    request_hashes: RequestHashes
    told: pb.PromptInfo
    answer_format: AnswerFormat = PLAIN_ANSWER


class Preparation:
    """The stages before routing, for one request: its state, buffer and timeline hear of each."""

    def __init__(
        self,
        scope: RequestScope,
        gate: AdmissionGate,
        preprocessor: Preprocessor,
        warmer: Warmer,
        cached: CachedResponse,
        citing: AnswerCiting,
    ) -> None:
        self._scope = scope
        self._context = scope.context
        self._gate = gate
        self._preprocessor = preprocessor
        self._warmer = warmer
        self._state = scope.state
        self._response = scope.response
        self._timeline = scope.timeline
        self._cached = cached
        self._citing = citing

    async def admit_request(self) -> AdmittedRequest:
        """Return the request with all that it left open, once there is a worker of its model."""
        request = self._scope.request
        model = await self._preprocessor.admit_request(request)
        self._state.begin_phase(RequestPhase.ADMIT, model.served_name)
        self._timeline.mark_admitted(request.model_choice)
        request = resolve_sampling(request, self._context.served.default_sampling(model))
        return AdmittedRequest(request, model)

    async def prepare_prompt(self, admitted: AdmittedRequest) -> PreparedPrompt | None:
        """Return what to route, or None when an earlier answer is on its way out. Raises why it cannot be
        routed."""
        request, model = admitted.request, admitted.model
        self._cached.set_request(request)
        read = await self._cached.look_up_beside(model, self._read_prompt(request, model))
        if isinstance(read, ResponseFound):
            self._answer_from_cache(request, read)
            return None
        if request.cache.wanted:
            self._timeline.mark_phase("cache")
            self._cached.record_prompt(
                read.found.passages,
                read.prompt_places,
                AnswerFormat(read.prompt.thinking, read.prompt.tool_format),
                passage_spans=read.passage_spans,
                trimmed=read.trimmed,
                degraded=read.found.degraded or read.warning,
                retriever=read.retriever,
                retrieval_query=read.retrieval_query,
            )
        self._citing.record_prompt(
            read.model, read.found.passages, read.prompt_places, read.passage_spans, read.retriever
        )
        return self._prepare(request, read)

    async def _read_prompt(self, request: Request, model: ModelIdentity) -> ReadPrompt:
        asked = await self._retrieve_passages(request, model)
        found, told = asked.retrieved, model
        check_found(found, request.retrieval)
        if found.passages:
            adapter = self._scope.config.retrieval_adapter
            told = with_adapter(model, adapter, self._context.fleet.instances, request.tenant)
        self._state.begin_phase(RequestPhase.TOKENIZE)
        layout, prompt = await self._tokenize(request, told, found.passages)
        places, spans, trimmed = prompt.passage_places, prompt.passage_spans, prompt.trimmed
        if found.passages and not any(places):
            self._check_goes_without(request, told, prompt)
            layout, prompt = await self._tokenize(request, model, ())
            told = model
        self._state.begin_phase(RequestPhase.TOKENIZE, told.served_name)
        self._warmer.confirm_prompt(prompt)
        self._timeline.mark_phase("tokenize")
        near = near_places(found.passages, self._context.config.passage_least_share)
        near_spans = [spans[at] for at in near]
        left_out = left_out_warning([places[at] for at in near], request.retrieval, near_spans)
        over = over_budget_warning(request.trimming, len(request.chat), len(prompt.token_ids))
        warning = joined_warnings(found.warning, left_out, over)
        return ReadPrompt(
            told, prompt, layout, found, asked.retriever, asked.query, places, spans, trimmed, warning
        )

    async def _tokenize(
        self, request: Request, model: ModelIdentity, passages: tuple[ScoredPassage, ...]
    ) -> tuple[str, Prompt]:
        """The KV layout that the prompt's blocks are named for, and the prompt."""
        layout = self._context.served.usual_layout(model)
        room_tokens = self._gate.room_tokens(model, request.sampling.max_tokens)
        prompt = await self._preprocessor.tokenize_prompt(
            request, passages, layout, model, room_tokens=room_tokens
        )
        return layout, prompt

    def _check_goes_without(self, request: Request, model: ModelIdentity, prompt: Prompt) -> None:
        """Raises InvalidRequest where a prompt that has room for no passage is not to be answered."""
        self._gate.check_tokens(model, len(prompt.token_ids))
        if not request.retrieval.may_degrade:
            raise InvalidRequest(
                "the prompt has no room for any of its passages: shorten it or its answer, raise "
                "retrieval.max_tokens or the budgets of trimming where they are set, or let retrieval degrade"
            )

    def _prepare(self, request: Request, read: ReadPrompt) -> PreparedPrompt:
        model, prompt, budget = read.model, read.prompt, self._scope.budget
        answer_format = AnswerFormat(prompt.thinking, prompt.tool_format)
        if not answer_format.is_plain:
            request = self._read_answer(request, prompt, answer_format)
        self._scope.allowance.count_prompt(len(prompt.token_ids))
        self._gate.check_tokens(model, len(prompt.token_ids))
        self._begin_log(request, prompt.token_ids)
        told = pb.PromptInfo(
            request_id=self._scope.request_id,
            model=model.served_name,
            prompt_tokens=len(prompt.token_ids),
            seed=request.sampling.seed,
            passages=map(retrieved_passage, read.found.passages, read.prompt_places, read.passage_spans),
            degraded=read.found.degraded,
            warning=read.warning,
            retrieval_query=read.retrieval_query,
            sampling=sampling_in_force(request.sampling),
            resume_token=self._scope.resume_token if request.resumable else "",
            trimmed=trimmed_events(read.trimmed),
            model_choice=choice_event(request),
        )
        self._state.record_trimmed(read.trimmed)
        self._response.put_prompt(told, may_change=request.may_change_model)
        self._state.begin_phase(RequestPhase.ROUTE)
        reusable = prompt.block_hashes if self._state.told.complete else ()
        self._gate.check_prompt(model, request, budget, len(prompt.token_ids), reusable)
        self._gate.check_turn(model, request, budget)  # others may have come in the meantime
        hasher = BlockHasher.of(self._context.config.fleet_key)
        request_hashes = RequestHashes(
            hasher, read.layout, request.cache_scope, prompt.block_hashes, adapter=model.adapter.digest
        )
        measured = _measured(request)
        return PreparedPrompt(measured, model, prompt.token_ids, request_hashes, told, answer_format)

    def _answer_from_cache(self, request: Request, found: ResponseFound) -> None:
        """Answer all at once; the session ends as that of the earlier answer did."""
        self._preprocessor.cancel_asks()
        kept = found.response
        self._citing.take_earlier(kept.cited)
        self._timeline.mark_phase("cache")
        self._response.read_answer(AnswerFormat(kept.thinking, FORMATS.get(kept.tool_format)))
        self._response.put_prompt(
            pb.PromptInfo(
                request_id=self._scope.request_id,
                model=kept.model,
                prompt_tokens=kept.prompt_tokens,
                seed=kept.seed,
                passages=map(
                    retrieved_passage, kept.passages, kept.prompt_places, kept.passage_spans or repeat(WHOLE)
                ),
                trimmed=trimmed_events(kept.trimmed),
                retrieval_query=kept.retrieval_query,
                sampling=sampling_in_force(request.sampling),
                cached=pb.CachedAnswer(
                    request_id=kept.request_id, age_ms=found.age_ms, similarity=found.similarity
                ),
                model_choice=choice_event(request),
            )
        )
        ids = tuple(unpack_ids(kept.token_ids))
        self._response.put_text(kept.prompt_tokens, ids, kept.text, ())
        self._state.take_earlier_answer(kept.model, kept.prompt_tokens, ids, kept.text, kept.finish)

    async def _retrieve_passages(self, request: Request, model: ModelIdentity) -> FoundPassages:
        """Ask a retriever for passages while a worker warms what is known of the prompt."""
        if not request.retrieval.passages:
            return FoundPassages(NOTHING_ASKED)
        self._state.begin_phase(RequestPhase.RETRIEVE)
        level = self._scope.level_of(model)
        self._warmer.begin(model)
        try:
            found = await self._preprocessor.retrieve_passages(
                request, model, level, send_first_passages=self._warmer.wants_first
            )
        finally:
            await self._warmer.stop()
        count_degraded(found.retrieved.degraded)
        self._timeline.mark_phase("retrieve")
        return found

    def _read_answer(self, request: Request, prompt: Prompt, answer_format: AnswerFormat) -> Request:
        """The text is read for what the model thinks, and for calls of its tools, which it writes in their
        format alone.
        """
        self._response.read_answer(answer_format)
        request = replace(request, tool_use=request.tool_use.told_of(prompt.tool_places))
        tool_format, sampling = answer_format.tool_format, request.sampling
        if tool_format is not None:
            grammar = request.tool_use.grammar(tool_format, prompt.marker_ids, sampling.grammar)
            sampling = replace(sampling, grammar=grammar)
        holds_behind = sampling.grammar is not None
        rule = request.thinking_use.rule(prompt.thinking, sampling.max_tokens, holds_behind=holds_behind)
        if rule is not None:
            sampling = replace(sampling, thinking=rule)
        shown_ids = dict.fromkeys((*dict(prompt.thinking.marker_ids).values(), *prompt.marker_ids.values()))
        return replace(request, sampling=sampling, shown_ids=tuple(shown_ids))

    def _begin_log(self, request: Request, prompt_ids: Sequence[int]) -> None:
        """Begin the log of what the client is told, with its own prompt where it wants that."""
        keeps = self._cached.keeps or self._citing.wanted or request.agent is not None
        log = TokenLog(len(prompt_ids), texts=[] if keeps else None)
        if request.sampling.prompt_logprobs == NO_LOGPROBS:
            self._state.begin_log(log, PromptLogprobsBuffer())
            return
        check_prompt_logprobs(request.sampling, len(prompt_ids))
        self._state.begin_log(log, PromptLogprobsBuffer.wanted(len(prompt_ids)))
        self._response.put_prompt_logprobs([TokenLogprob(prompt_ids[0], 0.0, ())])


def _measured(request: Request) -> Request:
    """Return the request with log-probabilities where it depends on them who answers."""
    if request.cascade is None or request.sampling.logprobs != NO_LOGPROBS:
        return request
    return replace(request, sampling=replace(request.sampling, logprobs=0))


def choice_event(request: Request) -> pb.ModelChoice | None:
    """Return what the client is told of how its model was chosen, None where it chose itself."""
    return None if request.model_choice is None else request.model_choice.message()
