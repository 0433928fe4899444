# mypy: disable-error-code="type-arg"
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReasoningEffort(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REASONING_EFFORT_UNSPECIFIED: _ClassVar[ReasoningEffort]
    REASONING_EFFORT_NONE: _ClassVar[ReasoningEffort]
    REASONING_EFFORT_MINIMAL: _ClassVar[ReasoningEffort]
    REASONING_EFFORT_LOW: _ClassVar[ReasoningEffort]
    REASONING_EFFORT_MEDIUM: _ClassVar[ReasoningEffort]
    REASONING_EFFORT_HIGH: _ClassVar[ReasoningEffort]

class CacheMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CACHE_MODE_UNSPECIFIED: _ClassVar[CacheMode]
    CACHE_MODE_OFF: _ClassVar[CacheMode]
    CACHE_MODE_EXACT: _ClassVar[CacheMode]
    CACHE_MODE_SEMANTIC: _ClassVar[CacheMode]

class ToolChoice(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOOL_CHOICE_AUTO: _ClassVar[ToolChoice]
    TOOL_CHOICE_NONE: _ClassVar[ToolChoice]
    TOOL_CHOICE_REQUIRED: _ClassVar[ToolChoice]

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_NORMAL: _ClassVar[Priority]
    PRIORITY_LOW: _ClassVar[Priority]
    PRIORITY_HIGH: _ClassVar[Priority]

class PassageOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PASSAGE_ORDER_UNSPECIFIED: _ClassVar[PassageOrder]
    PASSAGE_ORDER_SHARED_PREFIX: _ClassVar[PassageOrder]
    PASSAGE_ORDER_BEST_FIRST: _ClassVar[PassageOrder]

class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OUTCOME_UNSPECIFIED: _ClassVar[Outcome]
    OUTCOME_FINISHED: _ClassVar[Outcome]
    OUTCOME_CANCELLED: _ClassVar[Outcome]
    OUTCOME_EXPIRED: _ClassVar[Outcome]
    OUTCOME_SHED: _ClassVar[Outcome]
    OUTCOME_FAILED: _ClassVar[Outcome]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_TOOL_CALLS: _ClassVar[FinishReason]

class ModelKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_KIND_UNSPECIFIED: _ClassVar[ModelKind]
    MODEL_KIND_GENERATION: _ClassVar[ModelKind]
    MODEL_KIND_EMBEDDING: _ClassVar[ModelKind]
REASONING_EFFORT_UNSPECIFIED: ReasoningEffort
REASONING_EFFORT_NONE: ReasoningEffort
REASONING_EFFORT_MINIMAL: ReasoningEffort
REASONING_EFFORT_LOW: ReasoningEffort
REASONING_EFFORT_MEDIUM: ReasoningEffort
REASONING_EFFORT_HIGH: ReasoningEffort
CACHE_MODE_UNSPECIFIED: CacheMode
CACHE_MODE_OFF: CacheMode
CACHE_MODE_EXACT: CacheMode
CACHE_MODE_SEMANTIC: CacheMode
TOOL_CHOICE_AUTO: ToolChoice
TOOL_CHOICE_NONE: ToolChoice
TOOL_CHOICE_REQUIRED: ToolChoice
PRIORITY_NORMAL: Priority
PRIORITY_LOW: Priority
PRIORITY_HIGH: Priority
PASSAGE_ORDER_UNSPECIFIED: PassageOrder
PASSAGE_ORDER_SHARED_PREFIX: PassageOrder
PASSAGE_ORDER_BEST_FIRST: PassageOrder
OUTCOME_UNSPECIFIED: Outcome
OUTCOME_FINISHED: Outcome
OUTCOME_CANCELLED: Outcome
OUTCOME_EXPIRED: Outcome
OUTCOME_SHED: Outcome
OUTCOME_FAILED: Outcome
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_TOOL_CALLS: FinishReason
MODEL_KIND_UNSPECIFIED: ModelKind
MODEL_KIND_GENERATION: ModelKind
MODEL_KIND_EMBEDDING: ModelKind

class GenerateRequest(_message.Message):
    __slots__ = ("model", "text", "chat", "token_ids", "sampling", "retrieval", "ttft_deadline_ms", "deadline_ms", "priority", "client_sent_unix_us", "inter_token_deadline_ms", "n", "cache", "resumable", "fallback", "sticky_key", "agent", "thinking", "trimming")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    RETRIEVAL_FIELD_NUMBER: _ClassVar[int]
    TTFT_DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CLIENT_SENT_UNIX_US_FIELD_NUMBER: _ClassVar[int]
    INTER_TOKEN_DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    CACHE_FIELD_NUMBER: _ClassVar[int]
    RESUMABLE_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_FIELD_NUMBER: _ClassVar[int]
    STICKY_KEY_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    THINKING_FIELD_NUMBER: _ClassVar[int]
    TRIMMING_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    chat: ChatPrompt
    token_ids: TokenIds
    sampling: Sampling
    retrieval: Retrieval
    ttft_deadline_ms: int
    deadline_ms: int
    priority: Priority
    client_sent_unix_us: int
    inter_token_deadline_ms: int
    n: int
    cache: Cache
    resumable: bool
    fallback: Fallback
    sticky_key: str
    agent: AgentHints
    thinking: Thinking
    trimming: Trimming
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., chat: _Optional[_Union[ChatPrompt, _Mapping]] = ..., token_ids: _Optional[_Union[TokenIds, _Mapping]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., retrieval: _Optional[_Union[Retrieval, _Mapping]] = ..., ttft_deadline_ms: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., priority: _Optional[_Union[Priority, str]] = ..., client_sent_unix_us: _Optional[int] = ..., inter_token_deadline_ms: _Optional[int] = ..., n: _Optional[int] = ..., cache: _Optional[_Union[Cache, _Mapping]] = ..., resumable: _Optional[bool] = ..., fallback: _Optional[_Union[Fallback, _Mapping]] = ..., sticky_key: _Optional[str] = ..., agent: _Optional[_Union[AgentHints, _Mapping]] = ..., thinking: _Optional[_Union[Thinking, _Mapping]] = ..., trimming: _Optional[_Union[Trimming, _Mapping]] = ...) -> None: ...

class Thinking(_message.Message):
    __slots__ = ("effort", "max_tokens", "deadline_ms")
    EFFORT_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    effort: ReasoningEffort
    max_tokens: int
    deadline_ms: int
    def __init__(self, effort: _Optional[_Union[ReasoningEffort, str]] = ..., max_tokens: _Optional[int] = ..., deadline_ms: _Optional[int] = ...) -> None: ...

class Trimming(_message.Message):
    __slots__ = ("off", "max_passage_tokens", "passage_share", "duplicates", "max_prompt_tokens", "fit_context", "compact", "max_summary_tokens", "max_tool_tokens")
    OFF_FIELD_NUMBER: _ClassVar[int]
    MAX_PASSAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PASSAGE_SHARE_FIELD_NUMBER: _ClassVar[int]
    DUPLICATES_FIELD_NUMBER: _ClassVar[int]
    MAX_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    FIT_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    COMPACT_FIELD_NUMBER: _ClassVar[int]
    MAX_SUMMARY_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOOL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    off: bool
    max_passage_tokens: int
    passage_share: float
    duplicates: bool
    max_prompt_tokens: int
    fit_context: bool
    compact: bool
    max_summary_tokens: int
    max_tool_tokens: int
    def __init__(self, off: _Optional[bool] = ..., max_passage_tokens: _Optional[int] = ..., passage_share: _Optional[float] = ..., duplicates: _Optional[bool] = ..., max_prompt_tokens: _Optional[int] = ..., fit_context: _Optional[bool] = ..., compact: _Optional[bool] = ..., max_summary_tokens: _Optional[int] = ..., max_tool_tokens: _Optional[int] = ...) -> None: ...

class AgentHints(_message.Message):
    __slots__ = ("session", "parent_session", "final", "pause_ms", "warm_next", "next_tool")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    PARENT_SESSION_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    PAUSE_MS_FIELD_NUMBER: _ClassVar[int]
    WARM_NEXT_FIELD_NUMBER: _ClassVar[int]
    NEXT_TOOL_FIELD_NUMBER: _ClassVar[int]
    session: str
    parent_session: str
    final: bool
    pause_ms: int
    warm_next: bool
    next_tool: str
    def __init__(self, session: _Optional[str] = ..., parent_session: _Optional[str] = ..., final: _Optional[bool] = ..., pause_ms: _Optional[int] = ..., warm_next: _Optional[bool] = ..., next_tool: _Optional[str] = ...) -> None: ...

class Fallback(_message.Message):
    __slots__ = ("allowed", "models")
    ALLOWED_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    allowed: bool
    models: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, allowed: _Optional[bool] = ..., models: _Optional[_Iterable[str]] = ...) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ("token", "received_tokens", "request")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    token: str
    received_tokens: int
    request: GenerateRequest
    def __init__(self, token: _Optional[str] = ..., received_tokens: _Optional[int] = ..., request: _Optional[_Union[GenerateRequest, _Mapping]] = ...) -> None: ...

class Cache(_message.Message):
    __slots__ = ("mode", "min_similarity", "max_age_ms", "any_seed")
    MODE_FIELD_NUMBER: _ClassVar[int]
    MIN_SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    MAX_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    ANY_SEED_FIELD_NUMBER: _ClassVar[int]
    mode: CacheMode
    min_similarity: float
    max_age_ms: int
    any_seed: bool
    def __init__(self, mode: _Optional[_Union[CacheMode, str]] = ..., min_similarity: _Optional[float] = ..., max_age_ms: _Optional[int] = ..., any_seed: _Optional[bool] = ...) -> None: ...

class CancelRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class CancelResponse(_message.Message):
    __slots__ = ("found",)
    FOUND_FIELD_NUMBER: _ClassVar[int]
    found: bool
    def __init__(self, found: _Optional[bool] = ...) -> None: ...

class ChatPrompt(_message.Message):
    __slots__ = ("messages", "template_optional", "tools", "tool_choice", "tool_name", "parallel_tool_calls")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    TEMPLATE_OPTIONAL_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    TOOL_NAME_FIELD_NUMBER: _ClassVar[int]
    PARALLEL_TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    template_optional: bool
    tools: _containers.RepeatedCompositeFieldContainer[Tool]
    tool_choice: ToolChoice
    tool_name: str
    parallel_tool_calls: bool
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ..., template_optional: _Optional[bool] = ..., tools: _Optional[_Iterable[_Union[Tool, _Mapping]]] = ..., tool_choice: _Optional[_Union[ToolChoice, str]] = ..., tool_name: _Optional[str] = ..., parallel_tool_calls: _Optional[bool] = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    name: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    tool_call_id: str
    reasoning: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ..., name: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ..., tool_call_id: _Optional[str] = ..., reasoning: _Optional[str] = ...) -> None: ...

class Tool(_message.Message):
    __slots__ = ("name", "description", "parameters")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    parameters: str
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., parameters: _Optional[str] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("id", "name", "arguments")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    arguments: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class TokenIds(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "seed", "max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "logprobs", "allowed_token_ids", "bad_word_ids", "json_schema", "regex", "grammar", "json_object", "prompt_logprobs", "stop_regex")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORD_IDS_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    JSON_OBJECT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    STOP_REGEX_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    seed: int
    max_tokens: int
    min_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    logprobs: int
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    bad_word_ids: _containers.RepeatedCompositeFieldContainer[TokenIds]
    json_schema: str
    regex: str
    grammar: str
    json_object: bool
    prompt_logprobs: int
    stop_regex: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., seed: _Optional[int] = ..., max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., logprobs: _Optional[int] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., bad_word_ids: _Optional[_Iterable[_Union[TokenIds, _Mapping]]] = ..., json_schema: _Optional[str] = ..., regex: _Optional[str] = ..., grammar: _Optional[str] = ..., json_object: _Optional[bool] = ..., prompt_logprobs: _Optional[int] = ..., stop_regex: _Optional[_Iterable[str]] = ...) -> None: ...

class Retrieval(_message.Message):
    __slots__ = ("enabled", "k", "may_degrade", "corpus", "filters", "order", "max_tokens", "query", "score_threshold")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    MAY_DEGRADE_FIELD_NUMBER: _ClassVar[int]
    CORPUS_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    SCORE_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    k: int
    may_degrade: bool
    corpus: str
    filters: _containers.RepeatedCompositeFieldContainer[MetadataFilter]
    order: PassageOrder
    max_tokens: int
    query: str
    score_threshold: float
    def __init__(self, enabled: _Optional[bool] = ..., k: _Optional[int] = ..., may_degrade: _Optional[bool] = ..., corpus: _Optional[str] = ..., filters: _Optional[_Iterable[_Union[MetadataFilter, _Mapping]]] = ..., order: _Optional[_Union[PassageOrder, str]] = ..., max_tokens: _Optional[int] = ..., query: _Optional[str] = ..., score_threshold: _Optional[float] = ...) -> None: ...

class MetadataFilter(_message.Message):
    __slots__ = ("field", "values")
    FIELD_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    field: str
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, field: _Optional[str] = ..., values: _Optional[_Iterable[str]] = ...) -> None: ...

class GenerateEvent(_message.Message):
    __slots__ = ("prompt", "text", "end", "prompt_logprobs")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    prompt: PromptInfo
    text: TextDelta
    end: Terminal
    prompt_logprobs: PromptLogprobs
    def __init__(self, prompt: _Optional[_Union[PromptInfo, _Mapping]] = ..., text: _Optional[_Union[TextDelta, _Mapping]] = ..., end: _Optional[_Union[Terminal, _Mapping]] = ..., prompt_logprobs: _Optional[_Union[PromptLogprobs, _Mapping]] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("position", "logprobs", "choice")
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    position: int
    logprobs: _containers.RepeatedCompositeFieldContainer[Logprob]
    choice: int
    def __init__(self, position: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[Logprob, _Mapping]]] = ..., choice: _Optional[int] = ...) -> None: ...

class PromptInfo(_message.Message):
    __slots__ = ("request_id", "model", "prompt_tokens", "seed", "passages", "degraded", "choice", "warning", "retrieval_query", "cached", "sampling", "resume_token", "model_choice", "coalesced_with", "trimmed")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    PASSAGES_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    RETRIEVAL_QUERY_FIELD_NUMBER: _ClassVar[int]
    CACHED_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    RESUME_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MODEL_CHOICE_FIELD_NUMBER: _ClassVar[int]
    COALESCED_WITH_FIELD_NUMBER: _ClassVar[int]
    TRIMMED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    prompt_tokens: int
    seed: int
    passages: _containers.RepeatedCompositeFieldContainer[RetrievedPassage]
    degraded: str
    choice: int
    warning: str
    retrieval_query: str
    cached: CachedAnswer
    sampling: Sampling
    resume_token: str
    model_choice: ModelChoice
    coalesced_with: str
    trimmed: _containers.RepeatedCompositeFieldContainer[TrimmedPart]
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., prompt_tokens: _Optional[int] = ..., seed: _Optional[int] = ..., passages: _Optional[_Iterable[_Union[RetrievedPassage, _Mapping]]] = ..., degraded: _Optional[str] = ..., choice: _Optional[int] = ..., warning: _Optional[str] = ..., retrieval_query: _Optional[str] = ..., cached: _Optional[_Union[CachedAnswer, _Mapping]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., resume_token: _Optional[str] = ..., model_choice: _Optional[_Union[ModelChoice, _Mapping]] = ..., coalesced_with: _Optional[str] = ..., trimmed: _Optional[_Iterable[_Union[TrimmedPart, _Mapping]]] = ...) -> None: ...

class TrimmedPart(_message.Message):
    __slots__ = ("what", "count", "tokens")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    what: str
    count: int
    tokens: int
    def __init__(self, what: _Optional[str] = ..., count: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class ModelChoice(_message.Message):
    __slots__ = ("asked", "rule", "why", "hardness", "skipped")
    ASKED_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    HARDNESS_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    asked: str
    rule: str
    why: str
    hardness: float
    skipped: _containers.RepeatedCompositeFieldContainer[SkippedModel]
    def __init__(self, asked: _Optional[str] = ..., rule: _Optional[str] = ..., why: _Optional[str] = ..., hardness: _Optional[float] = ..., skipped: _Optional[_Iterable[_Union[SkippedModel, _Mapping]]] = ...) -> None: ...

class SkippedModel(_message.Message):
    __slots__ = ("model", "why")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    model: str
    why: str
    def __init__(self, model: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class CachedAnswer(_message.Message):
    __slots__ = ("request_id", "age_ms", "similarity")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    AGE_MS_FIELD_NUMBER: _ClassVar[int]
    SIMILARITY_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    age_ms: int
    similarity: float
    def __init__(self, request_id: _Optional[str] = ..., age_ms: _Optional[int] = ..., similarity: _Optional[float] = ...) -> None: ...

class RetrievedPassage(_message.Message):
    __slots__ = ("source", "text", "score", "start", "end", "page", "prompt_place", "metadata", "in_prompt")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    PROMPT_PLACE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    IN_PROMPT_FIELD_NUMBER: _ClassVar[int]
    source: str
    text: str
    score: float
    start: int
    end: int
    page: int
    prompt_place: int
    metadata: _containers.ScalarMap[str, str]
    in_prompt: _containers.RepeatedCompositeFieldContainer[TextSpan]
    def __init__(self, source: _Optional[str] = ..., text: _Optional[str] = ..., score: _Optional[float] = ..., start: _Optional[int] = ..., end: _Optional[int] = ..., page: _Optional[int] = ..., prompt_place: _Optional[int] = ..., metadata: _Optional[_Mapping[str, str]] = ..., in_prompt: _Optional[_Iterable[_Union[TextSpan, _Mapping]]] = ...) -> None: ...

class TextSpan(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class TextDelta(_message.Message):
    __slots__ = ("text", "token_ids", "position", "logprobs", "tool_calls", "choice", "reasoning")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    text: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    position: int
    logprobs: _containers.RepeatedCompositeFieldContainer[Logprob]
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCallDelta]
    choice: int
    reasoning: str
    def __init__(self, text: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ..., position: _Optional[int] = ..., logprobs: _Optional[_Iterable[_Union[Logprob, _Mapping]]] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCallDelta, _Mapping]]] = ..., choice: _Optional[int] = ..., reasoning: _Optional[str] = ...) -> None: ...

class ToolCallDelta(_message.Message):
    __slots__ = ("index", "id", "name", "arguments")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    index: int
    id: str
    name: str
    arguments: str
    def __init__(self, index: _Optional[int] = ..., id: _Optional[str] = ..., name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...

class Logprob(_message.Message):
    __slots__ = ("token_id", "logprob", "top")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    top: _containers.RepeatedCompositeFieldContainer[TopLogprob]
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ..., top: _Optional[_Iterable[_Union[TopLogprob, _Mapping]]] = ...) -> None: ...

class TopLogprob(_message.Message):
    __slots__ = ("token_id", "logprob")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    logprob: float
    def __init__(self, token_id: _Optional[int] = ..., logprob: _Optional[float] = ...) -> None: ...

class Terminal(_message.Message):
    __slots__ = ("outcome", "finish_reason", "usage", "timeline", "error", "choice", "citations")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    TIMELINE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    CITATIONS_FIELD_NUMBER: _ClassVar[int]
    outcome: Outcome
    finish_reason: FinishReason
    usage: Usage
    timeline: Timeline
    error: Error
    choice: int
    citations: _containers.RepeatedCompositeFieldContainer[Citation]
    def __init__(self, outcome: _Optional[_Union[Outcome, str]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., usage: _Optional[_Union[Usage, _Mapping]] = ..., timeline: _Optional[_Union[Timeline, _Mapping]] = ..., error: _Optional[_Union[Error, _Mapping]] = ..., choice: _Optional[int] = ..., citations: _Optional[_Iterable[_Union[Citation, _Mapping]]] = ...) -> None: ...

class Citation(_message.Message):
    __slots__ = ("start", "end", "prompt_place", "passage_start", "passage_end", "support")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PROMPT_PLACE_FIELD_NUMBER: _ClassVar[int]
    PASSAGE_START_FIELD_NUMBER: _ClassVar[int]
    PASSAGE_END_FIELD_NUMBER: _ClassVar[int]
    SUPPORT_FIELD_NUMBER: _ClassVar[int]
    start: int
    end: int
    prompt_place: int
    passage_start: int
    passage_end: int
    support: float
    def __init__(self, start: _Optional[int] = ..., end: _Optional[int] = ..., prompt_place: _Optional[int] = ..., passage_start: _Optional[int] = ..., passage_end: _Optional[int] = ..., support: _Optional[float] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "cached_tokens", "draft_tokens", "accepted_draft_tokens", "replacements", "ngram_draft_tokens", "accepted_ngram_draft_tokens", "coalesced_tokens", "reasoning_tokens")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REPLACEMENTS_FIELD_NUMBER: _ClassVar[int]
    NGRAM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_NGRAM_DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COALESCED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    draft_tokens: int
    accepted_draft_tokens: int
    replacements: int
    ngram_draft_tokens: int
    accepted_ngram_draft_tokens: int
    coalesced_tokens: int
    reasoning_tokens: int
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., cached_tokens: _Optional[int] = ..., draft_tokens: _Optional[int] = ..., accepted_draft_tokens: _Optional[int] = ..., replacements: _Optional[int] = ..., ngram_draft_tokens: _Optional[int] = ..., accepted_ngram_draft_tokens: _Optional[int] = ..., coalesced_tokens: _Optional[int] = ..., reasoning_tokens: _Optional[int] = ...) -> None: ...

class Timeline(_message.Message):
    __slots__ = ("ttft_us", "total_us", "phases", "useful_us", "region")
    TTFT_US_FIELD_NUMBER: _ClassVar[int]
    TOTAL_US_FIELD_NUMBER: _ClassVar[int]
    PHASES_FIELD_NUMBER: _ClassVar[int]
    USEFUL_US_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    ttft_us: int
    total_us: int
    phases: _containers.RepeatedCompositeFieldContainer[Phase]
    useful_us: int
    region: str
    def __init__(self, ttft_us: _Optional[int] = ..., total_us: _Optional[int] = ..., phases: _Optional[_Iterable[_Union[Phase, _Mapping]]] = ..., useful_us: _Optional[int] = ..., region: _Optional[str] = ...) -> None: ...

class Phase(_message.Message):
    __slots__ = ("name", "start_us", "duration_us")
    NAME_FIELD_NUMBER: _ClassVar[int]
    START_US_FIELD_NUMBER: _ClassVar[int]
    DURATION_US_FIELD_NUMBER: _ClassVar[int]
    name: str
    start_us: int
    duration_us: int
    def __init__(self, name: _Optional[str] = ..., start_us: _Optional[int] = ..., duration_us: _Optional[int] = ...) -> None: ...

class Error(_message.Message):
    __slots__ = ("code", "message", "hop", "retry_after_ms")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    HOP_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    hop: str
    retry_after_ms: int
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., hop: _Optional[str] = ..., retry_after_ms: _Optional[int] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models",)
    MODELS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[Model]
    def __init__(self, models: _Optional[_Iterable[_Union[Model, _Mapping]]] = ...) -> None: ...

class Model(_message.Message):
    __slots__ = ("name", "kind", "context_tokens", "has_chat_template", "instances", "base", "default_sampling", "is_default", "targets")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    HAS_CHAT_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    INSTANCES_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_SAMPLING_FIELD_NUMBER: _ClassVar[int]
    IS_DEFAULT_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    name: str
    kind: ModelKind
    context_tokens: int
    has_chat_template: bool
    instances: _containers.RepeatedCompositeFieldContainer[ModelInstance]
    base: str
    default_sampling: _containers.RepeatedCompositeFieldContainer[SamplingDefault]
    is_default: bool
    targets: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., kind: _Optional[_Union[ModelKind, str]] = ..., context_tokens: _Optional[int] = ..., has_chat_template: _Optional[bool] = ..., instances: _Optional[_Iterable[_Union[ModelInstance, _Mapping]]] = ..., base: _Optional[str] = ..., default_sampling: _Optional[_Iterable[_Union[SamplingDefault, _Mapping]]] = ..., is_default: _Optional[bool] = ..., targets: _Optional[_Iterable[str]] = ...) -> None: ...

class SamplingDefault(_message.Message):
    __slots__ = ("name", "value", "source")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    source: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ..., source: _Optional[str] = ...) -> None: ...

class ModelInstance(_message.Message):
    __slots__ = ("role", "name")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    role: str
    name: str
    def __init__(self, role: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("model", "text", "chat", "add_special_tokens")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    ADD_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    chat: ChatPrompt
    add_special_tokens: bool
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ..., chat: _Optional[_Union[ChatPrompt, _Mapping]] = ..., add_special_tokens: _Optional[bool] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("model", "token_ids")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    model: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, model: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DetokenizeRequest(_message.Message):
    __slots__ = ("model", "token_ids")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    model: str
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, model: _Optional[str] = ..., token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class DetokenizeResponse(_message.Message):
    __slots__ = ("model", "text")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    model: str
    text: str
    def __init__(self, model: _Optional[str] = ..., text: _Optional[str] = ...) -> None: ...

class EmbedRequest(_message.Message):
    __slots__ = ("model", "texts")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    model: str
    texts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model: _Optional[str] = ..., texts: _Optional[_Iterable[str]] = ...) -> None: ...

class EmbedResponse(_message.Message):
    __slots__ = ("model", "embeddings")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    model: str
    embeddings: _containers.RepeatedCompositeFieldContainer[Embedding]
    def __init__(self, model: _Optional[str] = ..., embeddings: _Optional[_Iterable[_Union[Embedding, _Mapping]]] = ...) -> None: ...

class Embedding(_message.Message):
    __slots__ = ("values", "tokens", "truncated")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    tokens: int
    truncated: bool
    def __init__(self, values: _Optional[_Iterable[float]] = ..., tokens: _Optional[int] = ..., truncated: _Optional[bool] = ...) -> None: ...

class RetrieveRequest(_message.Message):
    __slots__ = ("corpus", "query", "k", "filters", "rerank", "may_degrade", "score_threshold")
    CORPUS_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    RERANK_FIELD_NUMBER: _ClassVar[int]
    MAY_DEGRADE_FIELD_NUMBER: _ClassVar[int]
    SCORE_THRESHOLD_FIELD_NUMBER: _ClassVar[int]
    corpus: str
    query: str
    k: int
    filters: _containers.RepeatedCompositeFieldContainer[MetadataFilter]
    rerank: bool
    may_degrade: bool
    score_threshold: float
    def __init__(self, corpus: _Optional[str] = ..., query: _Optional[str] = ..., k: _Optional[int] = ..., filters: _Optional[_Iterable[_Union[MetadataFilter, _Mapping]]] = ..., rerank: _Optional[bool] = ..., may_degrade: _Optional[bool] = ..., score_threshold: _Optional[float] = ...) -> None: ...

class RetrieveResponse(_message.Message):
    __slots__ = ("corpus", "passages", "degraded", "warning")
    CORPUS_FIELD_NUMBER: _ClassVar[int]
    PASSAGES_FIELD_NUMBER: _ClassVar[int]
    DEGRADED_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    corpus: str
    passages: _containers.RepeatedCompositeFieldContainer[RetrievedPassage]
    degraded: str
    warning: str
    def __init__(self, corpus: _Optional[str] = ..., passages: _Optional[_Iterable[_Union[RetrievedPassage, _Mapping]]] = ..., degraded: _Optional[str] = ..., warning: _Optional[str] = ...) -> None: ...

class RerankRequest(_message.Message):
    __slots__ = ("model", "query", "texts", "top_n")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    TOP_N_FIELD_NUMBER: _ClassVar[int]
    model: str
    query: str
    texts: _containers.RepeatedScalarFieldContainer[str]
    top_n: int
    def __init__(self, model: _Optional[str] = ..., query: _Optional[str] = ..., texts: _Optional[_Iterable[str]] = ..., top_n: _Optional[int] = ...) -> None: ...

class RerankResponse(_message.Message):
    __slots__ = ("model", "texts", "tokens", "warning")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    model: str
    texts: _containers.RepeatedCompositeFieldContainer[RankedText]
    tokens: int
    warning: str
    def __init__(self, model: _Optional[str] = ..., texts: _Optional[_Iterable[_Union[RankedText, _Mapping]]] = ..., tokens: _Optional[int] = ..., warning: _Optional[str] = ...) -> None: ...

class RankedText(_message.Message):
    __slots__ = ("index", "score")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    index: int
    score: float
    def __init__(self, index: _Optional[int] = ..., score: _Optional[float] = ...) -> None: ...
