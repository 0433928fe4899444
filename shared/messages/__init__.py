"""Every message that crosses the bus, as frozen dataclasses, by conversation. `shared.bus.codec` packs them.

    packing     lists of ids and of block hashes as bytes
    envelope    what surrounds every message, and the two answers that any ask may get
    adapters    low-rank changes of a model, as routes and heartbeats name them
    citing      the gateway asks a retriever what supports an answer
    corpora     what a retriever says of its corpora
    trimming    what is left out of a prompt, and for which budgets
    preprocessing  the gateway asks retriever and tokenizer
    routing     the gateway routes a request, cancels it, hears that it cannot go on
    hand_over   a request goes on at another decode worker
    key_limits  gateways count together what a key uses
    tokens      the hot path, from workers to detokenizer to gateway
    response_cache  answers that are known already
    grammar_trials  a worker tells another how a grammar's trial has ended
    kv          the control messages of KV transfers
    drafts      draft sessions
    accounts    an operator asks where the time of a request went
    console     a gateway asks another one what a console shows of it
    flags       an operator changes settings at run time
    fleet       heartbeats, prefix snapshots, audits, drain
    compatibility  how two versions of the code understand each other: read it before you change a message

Positions are absolute: position p is the p-th token of prompt + output, counted from 0.
Durations are integers in microseconds. Times are unix microseconds of the sender's clock.
"""

from shared.messages.accounts import (
    AccountRequest,
    AttemptAccount,
    NoAccount,
    PhaseAccount,
    RequestAccount,
)
from shared.messages.adapters import MAX_REPORTED_CHARS, NO_ADAPTER, AdapterId, AdapterReport
from shared.messages.citing import (
    MAX_CITED_ANSWER_CHARS,
    MAX_CITED_PASSAGE_BYTES,
    MAX_CITED_PASSAGES,
    AnswerCited,
    CiteAnswer,
    CitedSentence,
)
from shared.messages.compatibility import ASKS_THAT_DECIDE, MEANING_VERSION
from shared.messages.console import (
    ConsoleReport,
    ConsoleRequest,
    EndedRow,
    RequestPlace,
    RunningRow,
    SlotCounts,
    TimedPhase,
)
from shared.messages.drafts import DraftBlock, DraftClose, DraftCommit, DraftOpen, DraftResync
from shared.messages.envelope import Accepted, Envelope, Failure
from shared.messages.flags import (
    MAX_TRAFFIC_ROWS,
    ChangeFlag,
    FlagChange,
    FlagChanged,
    FlagLogReport,
    FlagLogRequest,
    FlagSetting,
    FlagTraffic,
    FlagTrafficRequest,
    FlagTrafficRow,
)
from shared.messages.fleet import (
    DUE_EDGES_S,
    MAX_DRAIN_S,
    MAX_REPORTED_TENANTS,
    NO_FETCHES,
    AuditReport,
    AuditRequest,
    BreakerReport,
    CorpusReport,
    DecodeReport,
    Drain,
    FetchReport,
    GatewayReport,
    Heartbeat,
    HeartbeatRequest,
    Held,
    ModelLevel,
    RegionReport,
    RetrieverReport,
    Snapshot,
    SnapshotRequest,
    TenantJobs,
    TenantQueue,
    TokenizerReport,
    WorkerReport,
)
from shared.messages.grammar_trials import GrammarTried
from shared.messages.hand_over import (
    LONG_STEPS,
    SHORT_OF_BLOCKS,
    AllowSuccessor,
    HandOver,
    HandOverDone,
    Successor,
)
from shared.messages.key_limits import (
    MAX_KEY_USES,
    BeginKeyUses,
    ClaimKey,
    CountKeyRefusals,
    KeyClaimed,
    KeyKeptElsewhere,
    KeyUsesBegun,
    KeyUsesRefused,
    LeaveKey,
    SettleKeyUse,
)
from shared.messages.kv import (
    KvAbort,
    KvAbortAck,
    KvCredit,
    KvDone,
    KvGrant,
    KvMissing,
    KvProbe,
    KvReady,
    KvReceived,
    KvSegment,
    LendPrefix,
)
from shared.messages.packing import (
    MAX_HASHES,
    MAX_PROMPT_TOKENS,
    pack_hashes,
    pack_ids,
    unpack_hashes,
    unpack_ids,
    unpack_vector,
)
from shared.messages.preprocessing import (
    MAX_CORPUS_CHARS,
    MAX_EMBED_TEXT_BYTES,
    MAX_EMBED_TEXTS,
    MAX_FILTER_CHARS,
    MAX_FILTER_VALUES,
    MAX_FILTERS,
    MAX_QUERY_CHARS,
    MAX_RERANK_TEXTS,
    NO_THINKING,
    ChatTurn,
    Detokenize,
    Detokenized,
    Embed,
    Embedded,
    Filters,
    FoundFirst,
    GetTokenBytes,
    PromptThinking,
    RerankTexts,
    Retrieve,
    Retrieved,
    ScoredPassage,
    TextScores,
    TokenBytes,
    Tokenize,
    Tokenized,
    Tool,
    ToolCall,
)
from shared.messages.response_cache import (
    CACHE_DIGEST_BYTES,
    MAX_COMPARED_BYTES,
    MAX_KEPT_BYTES,
    MAX_KEPT_TOKENS,
    KeepResponse,
    KeptResponse,
    LookUpResponse,
    ResponseFound,
    ResponseKey,
    ResponseMissing,
    passage_bytes,
)
from shared.messages.routing import (
    ALL_EMITTED,
    NO_LENDER,
    TELL_REPLAY,
    WARM_EPOCH,
    Cancel,
    CancelAck,
    ClientCancel,
    HandedOver,
    HoldReport,
    LivenessCheck,
    Lost,
    Open,
    Prefill,
    PrefixLender,
    Reserve,
    TakeOver,
    Warm,
)
from shared.messages.tokens import Mark, PromptLogprobs, Text, Tokens
from shared.messages.trimming import (
    DUPLICATES,
    JSON,
    NO_TRIMMING,
    PASSAGES,
    SENTENCES,
    SUMMARIZED,
    TOOLS,
    TRIMMED_PARTS,
    TURNS,
    WHITESPACE,
    Spans,
    TrimmedPart,
    Trimming,
)
from shared.messages.usage import MAX_USAGE_ROWS, UsageReport, UsageRequest, UsageRow

Message = (
    Accepted
    | Failure
    | HeartbeatRequest
    | Tokenize
    | Tokenized
    | GetTokenBytes
    | TokenBytes
    | Detokenize
    | Detokenized
    | Embed
    | Embedded
    | RerankTexts
    | TextScores
    | CiteAnswer
    | AnswerCited
    | Retrieve
    | Retrieved
    | FoundFirst
    | LookUpResponse
    | ResponseFound
    | ResponseMissing
    | KeepResponse
    | Open
    | Reserve
    | Prefill
    | Warm
    | HandOver
    | Successor
    | HandOverDone
    | AllowSuccessor
    | Cancel
    | CancelAck
    | ClientCancel
    | BeginKeyUses
    | CountKeyRefusals
    | KeyUsesBegun
    | KeyUsesRefused
    | KeyKeptElsewhere
    | SettleKeyUse
    | ClaimKey
    | KeyClaimed
    | LeaveKey
    | LivenessCheck
    | HoldReport
    | TakeOver
    | HandedOver
    | Tokens
    | Text
    | PromptLogprobs
    | Lost
    | LendPrefix
    | KvProbe
    | KvSegment
    | KvGrant
    | KvReady
    | KvCredit
    | KvMissing
    | KvDone
    | KvReceived
    | GrammarTried
    | KvAbort
    | KvAbortAck
    | DraftOpen
    | DraftCommit
    | DraftBlock
    | DraftClose
    | DraftResync
    | Heartbeat
    | SnapshotRequest
    | Snapshot
    | AuditRequest
    | AuditReport
    | AccountRequest
    | RequestAccount
    | NoAccount
    | Drain
    | UsageRequest
    | UsageReport
    | ConsoleRequest
    | ConsoleReport
    | ChangeFlag
    | FlagChanged
    | FlagLogRequest
    | FlagLogReport
    | FlagTrafficRequest
    | FlagTraffic
)

__all__ = [
    "ALL_EMITTED",
    "ASKS_THAT_DECIDE",
    "CACHE_DIGEST_BYTES",
    "DUE_EDGES_S",
    "DUPLICATES",
    "JSON",
    "LONG_STEPS",
    "MAX_CITED_ANSWER_CHARS",
    "MAX_CITED_PASSAGES",
    "MAX_CITED_PASSAGE_BYTES",
    "MAX_COMPARED_BYTES",
    "MAX_CORPUS_CHARS",
    "MAX_DRAIN_S",
    "MAX_EMBED_TEXTS",
    "MAX_EMBED_TEXT_BYTES",
    "MAX_FILTERS",
    "MAX_FILTER_CHARS",
    "MAX_FILTER_VALUES",
    "MAX_HASHES",
    "MAX_KEPT_BYTES",
    "MAX_KEPT_TOKENS",
    "MAX_KEY_USES",
    "MAX_PROMPT_TOKENS",
    "MAX_QUERY_CHARS",
    "MAX_REPORTED_CHARS",
    "MAX_REPORTED_TENANTS",
    "MAX_RERANK_TEXTS",
    "MAX_TRAFFIC_ROWS",
    "MAX_USAGE_ROWS",
    "MEANING_VERSION",
    "NO_ADAPTER",
    "NO_FETCHES",
    "NO_LENDER",
    "NO_THINKING",
    "NO_TRIMMING",
    "PASSAGES",
    "SENTENCES",
    "SHORT_OF_BLOCKS",
    "SUMMARIZED",
    "TELL_REPLAY",
    "TOOLS",
    "TRIMMED_PARTS",
    "TURNS",
    "WARM_EPOCH",
    "WHITESPACE",
    "Accepted",
    "AccountRequest",
    "AdapterId",
    "AdapterReport",
    "AllowSuccessor",
    "AnswerCited",
    "AttemptAccount",
    "AuditReport",
    "AuditRequest",
    "BeginKeyUses",
    "BreakerReport",
    "Cancel",
    "CancelAck",
    "ChangeFlag",
    "ChatTurn",
    "CiteAnswer",
    "CitedSentence",
    "ClaimKey",
    "ClientCancel",
    "ConsoleReport",
    "ConsoleRequest",
    "CorpusReport",
    "CountKeyRefusals",
    "DecodeReport",
    "Detokenize",
    "Detokenized",
    "DraftBlock",
    "DraftClose",
    "DraftCommit",
    "DraftOpen",
    "DraftResync",
    "Drain",
    "Embed",
    "Embedded",
    "EndedRow",
    "Envelope",
    "Failure",
    "FetchReport",
    "Filters",
    "FlagChange",
    "FlagChanged",
    "FlagLogReport",
    "FlagLogRequest",
    "FlagSetting",
    "FlagTraffic",
    "FlagTrafficRequest",
    "FlagTrafficRow",
    "FoundFirst",
    "GatewayReport",
    "GetTokenBytes",
    "GrammarTried",
    "HandOver",
    "HandOverDone",
    "HandedOver",
    "Heartbeat",
    "HeartbeatRequest",
    "Held",
    "HoldReport",
    "KeepResponse",
    "KeptResponse",
    "KeyClaimed",
    "KeyKeptElsewhere",
    "KeyUsesBegun",
    "KeyUsesRefused",
    "KvAbort",
    "KvAbortAck",
    "KvCredit",
    "KvDone",
    "KvGrant",
    "KvMissing",
    "KvProbe",
    "KvReady",
    "KvReceived",
    "KvSegment",
    "LeaveKey",
    "LendPrefix",
    "LivenessCheck",
    "LookUpResponse",
    "Lost",
    "Mark",
    "Message",
    "ModelLevel",
    "NoAccount",
    "Open",
    "PhaseAccount",
    "Prefill",
    "PrefixLender",
    "PromptLogprobs",
    "PromptThinking",
    "RegionReport",
    "RequestAccount",
    "RequestPlace",
    "RerankTexts",
    "Reserve",
    "ResponseFound",
    "ResponseKey",
    "ResponseMissing",
    "Retrieve",
    "Retrieved",
    "RetrieverReport",
    "RunningRow",
    "ScoredPassage",
    "SettleKeyUse",
    "SlotCounts",
    "Snapshot",
    "SnapshotRequest",
    "Spans",
    "Successor",
    "TakeOver",
    "TenantJobs",
    "TenantQueue",
    "Text",
    "TextScores",
    "TimedPhase",
    "TokenBytes",
    "Tokenize",
    "Tokenized",
    "TokenizerReport",
    "Tokens",
    "Tool",
    "ToolCall",
    "TrimmedPart",
    "Trimming",
    "UsageReport",
    "UsageRequest",
    "UsageRow",
    "Warm",
    "WorkerReport",
    "pack_hashes",
    "pack_ids",
    "passage_bytes",
    "unpack_hashes",
    "unpack_ids",
    "unpack_vector",
]
