"""The page of every bound on what comes from outside, made from constants, settings and their docstrings."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

from services.detokenizer.config import DetokenizerConfig
from services.gateway.config import GatewayConfig
from services.retriever.config import RetrieverConfig
from services.tokenizer.config import TokenizerConfig
from shared.config.fields import fields_of
from shared.worker.config import EngineServiceConfig
from tests.support.data import REPOSITORY


@dataclass(frozen=True, slots=True)
class Room:
    """A part of the page: limits of these modules and folders. `beyond` is what happens over one of them,
    where its docstring says nothing else."""

    title: str
    beyond: str
    places: tuple[str, ...]


ROOMS = (
    Room(
        "Calls of clients",
        "400 or INVALID_ARGUMENT, which names the field",
        (
            "services/gateway/http",
            "services/gateway/grpc",
            "services/gateway/request",
            "services/gateway/asks",
            "services/gateway/session",
            "services/gateway/keys",
            "services/gateway/virtual",
            "shared/http2",
            "shared/sampling",
            "shared/messages/preprocessing.py",
            "shared/text/stops.py",
            "shared/text/stopping",
            "shared/text/chat_template.py",
            "shared/engine/sampling",
            "shared/worker/grammar_compiler.py",
            "shared/errors.py",
        ),
    ),
    Room(
        "Messages on the bus",
        "a typed failure for who asked, else dropped and counted",
        (
            "shared/bus",
            "shared/messages",
            "shared/kv",
            "shared/worker/drafts/draft_tree.py",
            "shared/worker/warming/warming.py",
            "shared/worker/wire.py",
            "services/tokenizer",
            "services/retriever",
            "shared/retrieval/citing",
            "shared/trimming",
            "services/detokenizer",
            "services/prefill/actor.py",
            "services/prefill/prefix_loans.py",
            "services/gateway/scope",
            "shared/fairness/share.py",
        ),
    ),
    Room(
        "Models, tokenizers and adapters",
        "it is not loaded, and a sentence names the file and the field",
        (
            "shared/engine/draft_head",
            "shared/engine/loading",
            "shared/engine/adapters.py",
            "shared/text",
            "shared/models",
            "shared/files/model_store.py",
            "shared/retrieval/encoders",
        ),
    ),
    Room(
        "Documents and indexes",
        "left out or made anew, with the reason",
        ("shared/retrieval/documents", "shared/retrieval/index"),
    ),
    Room(
        "Files, pages and processes of an operator",
        "refused with a sentence that names the file or the option",
        (
            "shared/config",
            "shared/files",
            "shared/telemetry",
            "services/launcher",
            "services/cli",
            "shared/flags",
        ),
    ),
)
OWN_PLACES = (
    "services/decode",
    "services/gateway/admission",
    "services/gateway/http/console",
    "services/gateway/http/openapi",
    "services/gateway/session/console_report.py",
    "services/gateway/scope/recent_latencies.py",
    "services/gateway/flags",
    "services/gateway/fleet",
    "services/gateway/served_fleet.py",
    "services/gateway/regions",
    "services/gateway/prompt",
    "services/gateway/question",
    "services/gateway/tracing",
    "shared/actor",
    "shared/deadline.py",
    "shared/demo",
    "services/prefill/queue.py",
    "services/prefill/fetch_price.py",
    "services/prefill/prefix_fetches.py",
    "shared/blocks/prefix_fetch.py",
    "shared/fairness/service_counters.py",
    "shared/engine/affinity.py",
    "shared/engine/engine_config.py",
    "shared/engine/llm.py",
    "shared/engine/memory",
    "shared/engine/native",
    "shared/engine/scheduling",
    "shared/engine/tensor_parallel",
    "shared/kv/memory",
    "shared/process",
    "shared/training",
    "shared/worker/prefix_mirror.py",
)
"""Places whose limits are of our own work: what is kept, tried, drafted or taught."""
OWN = {
    "services/cli": ("MAX_MINUTES", "MAX_THREADS", "MAX_INSTANCES", "MAX_FOUND"),
    "services/cli/bench": (
        "MAX_CPU_INFO_BYTES",
        "MAX_IN_FLIGHT",
        "MAX_LOOKED_AT_CHARS",
        "MAX_RECORD_BYTES",
        "MAX_TOLD_CHARS",
    ),
    "services/cli/capacity": ("MAX_MOVES", "MAX_SHARED_TOKENS", "MAX_TIMES"),
    "services/cli/planner": ("MAX_AHEAD_S", "MAX_KEPT_COUNTS", "MAX_PENDING"),
    "services/gateway/asks": ("MAX_ASKS", "MAX_KNOWN", "MAX_CALL_ASKS"),
    "services/gateway/grpc": ("MAX_EVENT_BYTES", "MAX_STATUS_CHARS"),
    "services/gateway/http": ("MAX_IDS_AT_ONCE", "MAX_NAMED_VALUES"),
    "services/gateway/scope": ("MAX_EVENT_LOGPROBS", "MAX_ASKED", "MAX_ATTEMPTS", "MAX_GRPC_MARGIN_S"),
    "services/launcher": ("MAX_S", "MAX_ANSWER_BYTES", "MAX_REQUEST_BYTES"),
    "services/retriever": ("MAX_KEPT_VECTORS", "MAX_SAME_SCOPE"),
    "shared/bus": ("MAX_OUTSTANDING_PINGS", "MAX_U64", "MAX_REMEMBERED"),
    "shared/engine/loading": ("MAX_GROUP", "MAX_NAMES_IN_ERROR"),
    "shared/engine/sampling": ("MAX_CACHED_GRAMMARS", "MAX_FAULT_CHARS"),
    "shared/kv": ("MAX_REQUESTS_AGAIN", "MAX_MISSING_CELLS", "MAX_TOMBSTONES"),
    "shared/retrieval/documents": ("MAX_WORDS", "MAX_CHARS", "MAX_TOLD_BYTES"),
    "shared/retrieval/index": (
        "MAX_COUNT",
        "MAX_GONE_SHARE",
        "MAX_GROWTH",
        "MAX_KEPT_FIELDS",
        "MAX_MASK_BYTES",
        "MAX_PID_CHARS",
    ),
    "shared/sampling": ("MAX_FINITE",),
    "shared/telemetry": ("MAX_LINES_PER_S", "MAX_LIBRARY_LINES_PER_S", "MAX_PHASES"),
    "shared/text": ("MAX_KEPT_STEPS",),
}
"""Single ones of our own, beside those of strangers."""
SAID = "as it says"
TOO_COMPLEX = "400: the grammar is too complex"
OTHERWISE = {
    "MAX_AUDIT_BYTES": SAID,
    "MAX_BAD_CHUNKS": "the prompt is computed elsewhere",
    "MAX_CLIENT_US": SAID,
    "MAX_COMPOSE_BYTES": SAID,
    "MAX_COUNTED_MODELS": SAID,
    "MAX_CORPUS_CHARS": "refused; of a folder: name a smaller one",
    "MAX_DOCUMENTS": "name a smaller folder",
    "MAX_EARLY": "the oldest is forgotten",
    "MAX_EARLY_EXITS": SAID,
    "MAX_EMBED_TEXTS": SAID,
    "MAX_FILES": "name a smaller folder",
    "MAX_HEADERS": "400, and the connection ends",
    "MAX_INTEGER_BITS": "400: the chat template refuses the conversation",
    "MAX_KEPT_BYTES": "not kept",
    "MAX_KEPT_TOKENS": "not kept",
    "MAX_LOG_FILE_BYTES": "the log goes on in the next file",
    "MAX_LEXER_STATES": TOO_COMPLEX,
    "MAX_LOADING": SAID,
    "MAX_MARK": SAID,
    "MAX_NEXT_S": "taken for this",
    "MAX_QUEUED_LINES": SAID,
    "MAX_RERANK_TEXTS": SAID,
    "MAX_RENDERED_CHARS": "413 or INVALID_ARGUMENT: shorten the chat",
    "MAX_SEEN_BYTES": "all files are read anew",
    "MAX_STEP_ITEMS": TOO_COMPLEX,
    "MAX_ROW_ITEMS": TOO_COMPLEX,
    "MAX_STEP_LEXER_FUEL": TOO_COMPLEX,
    "MAX_SUBJECT_BYTES": "nobody is found there",
    "MAX_TEMPLATE_ITEMS": "400: the chat template refuses the conversation",
    "MAX_TEMPLATE_STEPS": "400: the chat template refuses the conversation",
    "MAX_UNREAD_BYTES": "reading waits",
    "MAX_WAITING_GRAMMARS": "shed, with a hint when to come back",
    "MAX_WORD_CHARS": SAID,
}
"""The limits over which something else happens than in the rest of their room."""
SETTINGS = {
    "http_max_body_bytes": "429, with a hint when to come back",
    "max_request_bytes": "413 or RESOURCE_EXHAUSTED",
    "max_sessions": "shed, with a hint when to come back",
    "max_text_calls": "shed, with a hint when to come back",
    "max_buffered_tokens": SAID,
    "max_text_bytes": "refused as too large",
    "max_queued": "shed, with a hint when to come back",
    "max_early_rows": "dropped and counted",
    "max_model_len": "400: the prompt leaves no room for an answer",
    "max_adapters": "the adapter is not loaded",
    "max_adapter_rank": "the adapter is not loaded",
}
CONFIGS: tuple[type[Any], ...] = (
    GatewayConfig,
    TokenizerConfig,
    RetrieverConfig,
    DetokenizerConfig,
    EngineServiceConfig,
)
UNITS = {
    "BYTES": "bytes",
    "CHARS": "characters",
    "S": "s",
    "MS": "ms",
    "US": "µs",
    "TOKENS": "tokens",
    "BITS": "bits",
    "MB": "MB",
    "MIN": "a minute",
}
BEYOND = re.compile(
    r"(?:[Bb]eyond|[Ll]onger|[Ll]arger|[Mm]ore)\b.{0,40}\b(?:is|are|gets|has|have|loses|ends)\b"
)
"""Found in a docstring that says itself what happens over the limit."""
HEAD = "| limit | value | unit | what it bounds | over it | module |\n" + "|---" * 6 + "|\n"
INTRODUCTION = """# Limits

Every bound on what comes from outside, made from the constants and the settings themselves
(`PENSTOCK_WRITE_PAGES=1 pytest tests/unit/test_limits_page.py`). What is over a limit is refused with a
sentence that names it, if the table says nothing else. An operator sets those in small letters.
"""


def limits_page() -> str:
    """Return the whole page."""
    parts = [INTRODUCTION]
    for room in ROOMS:
        rows = "".join(_row(room, *limit) for limit in _limits(room))
        parts.append(f"## {room.title}\n\n{HEAD}{rows}")
    settings = "".join(row for config in CONFIGS for row in _setting_rows(config))
    parts.append(f"## Settings of an operator\n\n{HEAD}{settings}")
    return "\n".join(parts)


def modules_with_limits() -> set[str]:
    """Return the paths of all modules that have one."""
    return {path for path, _, _ in _constants()}


def room_of(path: str) -> str:
    """Return the place in ROOMS that a module belongs to, the nearest one; "" where it is in none."""
    places = [place for room in ROOMS for place in room.places if _is_in(path, place)]
    return max(places, key=len, default="")


def is_own(path: str) -> bool:
    """Return whether all limits of a module are of our own work."""
    return any(_is_in(path, place) for place in OWN_PLACES)


def _is_in(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


def _limits(room: Room) -> Iterator[tuple[str, str, str]]:
    for path, name, meaning in _constants():
        own = [names for place, names in OWN.items() if _is_in(path, place)]
        if room_of(path) in room.places and not is_own(path) and not any(name in names for names in own):
            yield path, name, meaning


@cache
def _constants() -> tuple[tuple[str, str, str], ...]:
    return tuple(_all_constants())


def _all_constants() -> Iterator[tuple[str, str, str]]:
    """Yield the module, name and docstring of each constant that says how much there may be."""
    for top in ("services", "shared"):
        for file in sorted((REPOSITORY / top).rglob("*.py")):
            body = ast.parse(file.read_text("utf-8")).body
            for defined, behind in pairwise([*body, ast.Pass()]):
                match defined:
                    case ast.Assign(targets=[ast.Name(name)]) | ast.AnnAssign(target=ast.Name(name)):
                        if name.startswith("MAX_"):
                            yield file.relative_to(REPOSITORY).as_posix(), name, _docstring(behind)


def _docstring(node: ast.stmt) -> str:
    match node:
        case ast.Expr(ast.Constant(str() as text)):
            return " ".join(text.split())
    return ""


def _row(room: Room, path: str, name: str, meaning: str) -> str:
    value = getattr(importlib.import_module(path.removesuffix(".py").replace("/", ".")), name)
    unit = next((word for end, word in UNITS.items() if name.endswith(f"_{end}")), "")
    beyond = OTHERWISE.get(name) or (SAID if BEYOND.search(meaning) else room.beyond)
    told = meaning or name.removeprefix("MAX_").replace("_", " ").lower()
    return f"| `{name}` | {_shown(value, unit)} | {unit} | {_cell(told)} | {beyond} | `{path}` |\n"


def _setting_rows(config: type[Any]) -> Iterator[str]:
    path = config.__module__.replace(".", "/") + ".py"
    for name, field in fields_of(config).items():
        if name in SETTINGS:
            unit = next((word for end, word in UNITS.items() if name.endswith(f"_{end.lower()}")), "")
            told = f"{_shown(getattr(config(), name), unit)} | {unit} | {_cell(field.rule.help)}"
            yield f"| `{name}` | {told} | {SETTINGS[name]} | `{path}` |\n"


def _shown(value: Any, unit: str) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, float):
        return f"{value:g}"
    for power, name in ((40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")):
        if unit == "bytes" and value >= 1 << power and value % (1 << power) == 0:
            return f"{value >> power} {name}"
    return f"2^{value.bit_length()} - 1" if value > 1 << 30 and value & (value + 1) == 0 else f"{value:,}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")
