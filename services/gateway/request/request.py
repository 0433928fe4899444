"""One validated request: what a client asked for, with defaults filled in and every limit checked."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from protos.penstock.v1 import inference_pb2 as pb
from services.gateway.request.agent_hints import AgentHints, read_agent_hints
from services.gateway.request.cache_use import NO_CACHE, CacheUse, read_cache_use
from services.gateway.request.chat_prompt import read_json, read_tools, read_turns
from services.gateway.request.fallback_use import FallbackUse, read_fallback, read_sticky_key
from services.gateway.request.model_choice import ModelChoice
from services.gateway.request.resume_token import ResumeClaim, ResumeTokens
from services.gateway.request.retrieval_use import (
    DEFAULT_PASSAGES,
    NO_RETRIEVAL,
    SHARED_PREFIX,
    RetrievalUse,
    read_retrieval_use,
)
from services.gateway.request.sampling import validate_sampling
from services.gateway.request.thinking_use import DEFAULT_THINKING, ThinkingUse, read_thinking_use
from services.gateway.request.tool_use import ToolUse
from services.gateway.request.trimming_use import read_trimming
from shared.cache_modes import OFF
from shared.errors import InvalidRequest, NotFound
from shared.fairness.share import TenantShare
from shared.files.virtual_model import Cascade
from shared.messages import NO_TRIMMING, ChatTurn, Trimming
from shared.sampling.defaults import DEFAULT_MAX_TOKENS, DEFAULTED
from shared.sampling.parameters import NO_LOGPROBS, SamplingParams
from shared.text.stopping.regex_stops import check_stop_regexes
from shared.text.token_reach import sure_bytes

MAX_TOKEN_ID = (1 << 31) - 1
"""The largest id in a prompt of token ids."""
MAX_MODEL_CHARS = 256
"""The longest name of a model."""
MAX_STOPS = 16
"""The most stop strings of a request."""
MAX_STOP_CHARS = 256
"""The longest stop string."""
MAX_DEADLINE_MS = 24 * 3600 * 1000
"""The longest deadline that a client may ask for."""
MAX_CACHE_SALT_CHARS = 256
"""The longest salt of the prefix cache."""
PRIORITIES = (pb.PRIORITY_LOW, pb.PRIORITY_NORMAL, pb.PRIORITY_HIGH)
"""They cross the bus by the numbers of the public contract."""


NO_TOOLS = ToolUse()
JSON_KINDS = ("json_schema", "json_object")
"""The constraints that hold an answer to JSON where it calls nothing."""


@dataclass(frozen=True, slots=True)
class Request:
    """Exactly one of `text`, `chat`, `token_ids` is set. Deadlines are None when the client set none; that
    from tokens to tokens has no default.

    `template_optional`: a model without a chat template takes the prompt as plain text. KV is shared within
    `tenant` alone; it comes from the client's API key, never from the client. Within that, with those alone
    that send the same `cache_salt`. `shown_ids`: special tokens that stand in the text, known once the prompt
    is ids. `open_sampling`: parameters that the client left open, until the model's defaults are known.
    `weight`: the key's, in its tenant's share. `resume_tokens`: those by which its stream can be gone on with
    at another gateway, None where it cannot; `resumed`: the stream that it goes on with, None for a new one.
    `coalesces`: one that is the same may share its computation while both are in flight.
    `agent`: what its client knows of the agent that it is a call of, None for nothing. `flags`: the changes
    of settings that it has, by their versions; it keeps them to its end. `thinking_use`: how its model is to
    think before it answers.
    `trimming`: the budgets that its prompt is shortened to. `stop_regex`: patterns that end the answer, as
    the strings of `stop` do.
    """

    model: str
    text: str | None
    chat: tuple[ChatTurn, ...]
    token_ids: tuple[int, ...] | None
    sampling: SamplingParams
    stop: tuple[str, ...]
    retrieval: RetrievalUse
    ttft_deadline_ms: int | None
    deadline_ms: int | None
    priority: int
    client_sent_unix_us: int
    tenant: str = ""
    inter_token_deadline_ms: int | None = None
    template_optional: bool = False
    cache_salt: str = ""
    tool_use: ToolUse = NO_TOOLS
    shown_ids: tuple[int, ...] = ()
    cache: CacheUse = NO_CACHE
    open_sampling: tuple[str, ...] = ()
    weight: int = 1
    resume_tokens: ResumeTokens | None = None
    resumed: ResumeClaim | None = None
    fallback: FallbackUse | None = None
    sticky_key: str = ""
    model_choice: ModelChoice | None = None
    coalesces: bool = False
    agent: AgentHints | None = None
    flags: tuple[str, ...] = ()
    thinking_use: ThinkingUse = DEFAULT_THINKING
    trimming: Trimming = NO_TRIMMING
    stop_regex: tuple[str, ...] = ()

    @property
    def may_fall_back(self) -> bool:
        """Whether there is another model that may answer."""
        return self.model_choice is not None and bool(self.model_choice.left)

    @property
    def cascade(self) -> Cascade | None:
        """The model that may answer anew once the answer is there, None for none."""
        return None if self.model_choice is None else self.model_choice.cascade

    @property
    def may_change_model(self) -> bool:
        """Whether another model may answer than the one that is asked first."""
        return self.may_fall_back or self.cascade is not None

    @property
    def resumable(self) -> bool:
        return self.resume_tokens is not None

    @property
    def share(self) -> TenantShare:
        """Its part of what its tenant may have, in this gateway."""
        return TenantShare(self.tenant, self.weight)

    @property
    def cache_scope(self) -> str:
        """Within which KV is shared: no tenant's name holds a NUL, so no salt makes one tenant another."""
        return f"{self.tenant}\0{self.cache_salt}" if self.cache_salt else self.tenant

    @property
    def question(self) -> str:
        """The text, or the last message of the chat."""
        return self.chat[-1].content if self.chat else self.text or ""

    @property
    def sure_bytes(self) -> int:
        """Bytes that are in the prompt's tokens whatever a chat template does: it may drop other messages
        than the last, and the white space around that."""
        return sure_bytes(self.question.strip() if self.chat else self.text or "")

    @property
    def prompt_bytes(self) -> int:
        """The length of a prompt that is text or a chat, in bytes of UTF-8."""
        texts = [turn.content for turn in self.chat] or [self.text or ""]
        texts += [part for turn in self.chat for part in (turn.name, turn.tool_call_id, turn.reasoning)]
        calls = [call for turn in self.chat for call in turn.tool_calls]
        texts += [part for call in calls for part in (call.id, call.name, call.arguments)]
        tools = self.tool_use.tools
        texts += [part for tool in tools for part in (tool.name, tool.description, tool.parameters)]
        return sum(len(text.encode()) for text in texts)


def validate_request(
    message: pb.GenerateRequest,
    *,
    drawn_seed: int,
    tenant: str = "",
    cache_salt: str = "",
    cache_mode: str = OFF,
    passage_order: str = SHARED_PREFIX,
    retrieval_passages: int = DEFAULT_PASSAGES,
    max_tokens: int = DEFAULT_MAX_TOKENS,
    default_model: str = "",
    weight: int = 1,
    trimming: Trimming = NO_TRIMMING,
    coalesces: bool = False,
    flags: tuple[str, ...] = (),
) -> Request:
    """The request in `message` for `tenant`; raises InvalidRequest naming the field and what is allowed.

    `cache_mode`, `passage_order`, `retrieval_passages`, `max_tokens`, `default_model` and `trimming` are for
    a request that says nothing about them; `coalesces` is for one whose answer comes again. `flags` are its
    changes of settings.

    The model's own limits (its name, context and vocabulary) and the prompt's size are checked where they are
    known.
    """
    if len(message.model) > MAX_MODEL_CHARS:
        raise InvalidRequest(f"model has {len(message.model)} characters: send at most {MAX_MODEL_CHARS}")
    if len(cache_salt) > MAX_CACHE_SALT_CHARS:
        raise InvalidRequest(
            f"cache_salt has {len(cache_salt)} characters: send at most {MAX_CACHE_SALT_CHARS}"
        )
    kind = message.WhichOneof("prompt")
    if kind is None:
        raise InvalidRequest("the prompt is missing: set one of text, chat and token_ids")
    chat = read_turns(message.chat) if kind == "chat" else ()
    sampling = validate_sampling(message.sampling, drawn_seed=drawn_seed, max_tokens=max_tokens)
    request = Request(
        model=message.model or default_model,
        text=_text(message.text) if kind == "text" else None,
        chat=chat,
        token_ids=_token_ids(message.token_ids) if kind == "token_ids" else None,
        sampling=sampling,
        stop=_stop(message.sampling),
        retrieval=read_retrieval_use(message.retrieval, passage_order, retrieval_passages)
        if message.HasField("retrieval")
        else NO_RETRIEVAL,
        ttft_deadline_ms=_deadline(message, "ttft_deadline_ms"),
        deadline_ms=_deadline(message, "deadline_ms"),
        priority=_priority(message),
        client_sent_unix_us=_client_sent(message),
        tenant=tenant,
        inter_token_deadline_ms=_inter_token_deadline(message),
        template_optional=kind == "text" or message.chat.template_optional or message.retrieval.enabled,
        cache_salt=cache_salt,
        tool_use=read_tools(message.chat) if kind == "chat" else NO_TOOLS,
        cache=read_cache_use(message, sampling, chat, cache_mode),
        open_sampling=tuple(name for name in DEFAULTED if not message.sampling.HasField(name)),
        weight=weight,
        fallback=read_fallback(message),
        sticky_key=read_sticky_key(message),
        coalesces=coalesces and _comes_again(message.sampling, sampling),
        agent=read_agent_hints(message),
        flags=flags,
        thinking_use=read_thinking_use(message),
        trimming=read_trimming(message, trimming),
        stop_regex=_stop_regex(message.sampling),
    )
    _check_tools(request)
    if request.retrieval.passages:
        _check_question(request)
    return request


def served_model(wanted: str, served: set[str]) -> str:
    """The name of the served model that `wanted` means; raises InvalidRequest or NotFound."""
    if not wanted and len(served) == 1:
        return next(iter(served))
    names = ", ".join(sorted(served))
    if not wanted:
        raise InvalidRequest(f"model is empty but several are served: send one of {names}")
    if name := known_as(wanted, served):
        return name
    empty = ", or leave model empty" if len(served) == 1 else ""
    raise NotFound(f"model {wanted!r} is not served: send one of {names}{empty}")


def split_model(wanted: str, served: Collection[str]) -> tuple[str, str]:
    """The model and the adapter over it that `wanted` names as MODEL:ADAPTER; "" for no adapter. A served
    model may have a colon in its own name."""
    model, _, adapter = wanted.rpartition(":")
    if not adapter or known_as(wanted, served) or not known_as(model, served):
        return wanted, ""
    return model, adapter


def known_as(wanted: str, served: Collection[str]) -> str:
    """A model is known by its id and, when that is a path, by the last part of it; "" for an unknown one."""
    names = (name for name in sorted(served) if wanted in (name, name.rstrip("/").rsplit("/", 1)[-1]))
    return next(names, "") if wanted else ""


def _comes_again(asked: pb.Sampling, sampling: SamplingParams) -> bool:
    """Whether the same request may get the same answer: unless it draws by a seed that is nobody's. Nobody
    keeps log-probabilities of a prompt for others."""
    drawn = asked.HasField("temperature") and asked.temperature > 0 and not asked.HasField("seed")
    return not drawn and sampling.prompt_logprobs == NO_LOGPROBS


def _text(text: str) -> str:
    if not text:
        raise InvalidRequest("text is empty: send at least one character")
    return text


def _token_ids(token_ids: pb.TokenIds) -> tuple[int, ...]:
    ids = tuple(token_ids.ids)
    if not ids:
        raise InvalidRequest("token_ids.ids is empty: send at least one id")
    if max(ids) > MAX_TOKEN_ID:
        raise InvalidRequest(f"token_ids.ids holds {max(ids)}: send ids of the model's vocabulary")
    return ids


def _stop(sampling: pb.Sampling) -> tuple[str, ...]:
    if len(sampling.stop) > MAX_STOPS:
        raise InvalidRequest(f"sampling.stop has {len(sampling.stop)} strings: send at most {MAX_STOPS}")
    for index, stop in enumerate(sampling.stop):
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise InvalidRequest(
                f"sampling.stop[{index}] has {len(stop)} characters: send 1 to {MAX_STOP_CHARS}"
            )
    return tuple(dict.fromkeys(sampling.stop))


def _stop_regex(sampling: pb.Sampling) -> tuple[str, ...]:
    patterns = tuple(sampling.stop_regex)
    if patterns:
        check_stop_regexes(patterns, "sampling.stop_regex")
    return patterns


def _check_question(request: Request) -> None:
    if request.token_ids is not None:
        raise InvalidRequest("retrieval needs a prompt of text or chat: send one, or turn retrieval off")
    if request.chat and request.chat[-1].role != "user":
        raise InvalidRequest(
            "retrieval needs the last of chat.messages to have role user: it is the question"
        )
    if not request.question.strip():
        raise InvalidRequest("retrieval needs a question that is not blank: send one, or turn retrieval off")


def _check_tools(request: Request) -> None:
    tools = request.tool_use.tools
    constraint = request.sampling.grammar
    if tools and constraint is not None:
        if constraint.kind not in JSON_KINDS:
            raise InvalidRequest("chat.tools cannot be called beside a regex or a grammar: send one of them")
        if read_json(constraint.text or "{}") is None:
            raise InvalidRequest("sampling.json_schema is no JSON, or nested too deeply: send a JSON Schema")


def _deadline(message: pb.GenerateRequest, name: str) -> int | None:
    if not message.HasField(name):
        return None
    value = int(getattr(message, name))
    if not 1 <= value <= MAX_DEADLINE_MS:
        raise InvalidRequest(f"{name} is {value}: send milliseconds from 1 to {MAX_DEADLINE_MS}")
    return value


def _inter_token_deadline(message: pb.GenerateRequest) -> int | None:
    value = message.inter_token_deadline_ms
    if not 0 <= value <= MAX_DEADLINE_MS:
        raise InvalidRequest(
            f"inter_token_deadline_ms is {value}: send milliseconds up to {MAX_DEADLINE_MS}, or 0 for any"
        )
    return value or None


def _priority(message: pb.GenerateRequest) -> int:
    if message.priority not in PRIORITIES:
        raise InvalidRequest(
            f"priority is {int(message.priority)}: send PRIORITY_LOW, PRIORITY_NORMAL or PRIORITY_HIGH"
        )
    return int(message.priority)


def _client_sent(message: pb.GenerateRequest) -> int:
    if message.client_sent_unix_us < 0:
        raise InvalidRequest("client_sent_unix_us is negative: send unix microseconds, or 0 to leave it out")
    return message.client_sent_unix_us
