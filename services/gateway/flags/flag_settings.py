"""The settings of [gateway] that can be changed at run time for a part of the requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from services.gateway.config import GatewayConfig
from shared.config.fields import (
    ConfigError,
    allowed_values,
    checked_value,
    fields_of,
    parsed_value,
    text_of_value,
)
from shared.errors import InvalidRequest
from shared.messages import FlagSetting

FLAG_SETTINGS: Mapping[str, str] = {
    "cache_mode": "as the request is read, where neither client nor key says so",
    "cache_wait_ms": "once its prompt is ready",
    "semantic_cache_wait_ms": "once its prompt is ready",
    "coalesce": "as the request is read",
    "default_model": "as the request is read, where it names none",
    "default_max_tokens": "as the request is read, where it says nothing",
    "retrieval_passages": "as the request is read, where it says no k",
    "passage_order": "as the request is read, where it says nothing",
    "retrieve_share": "before a retriever is asked",
    "trim_passage_tokens": "as the request is read, where it says nothing",
    "trim_passage_share": "as the request is read, where it says nothing",
    "trim_duplicates": "as the request is read, where it says nothing",
    "trim_prompt_tokens": "as the request is read, where it says nothing",
    "trim_summary_tokens": "as the request is read, where it says nothing",
    "trim_tool_tokens": "as the request is read, where it says nothing",
    "trim_space": "as the request is read, where it says nothing",
    "trim_to_context": "as the request is read, where it says nothing",
    "rerank": "before a retriever is asked",
    "least_degradation": "before a retriever is asked, and before anything is warmed",
    "retrieval_adapter": "once passages are found",
    "warm_while_retrieving": "before a retriever is asked",
    "warm_next_turn": "at the end of an agent's answer",
    "warm_min_tokens": "before anything is warmed",
    "local_prefill_tokens": "each time that it is routed",
    "use_speculator": "each time that it is routed",
    "predict_answers": "once its prompt is ready",
    "cite_wait_ms": "at the end of the answer",
}
"""Each setting, and when a request reads it."""
FIELDS = fields_of(GatewayConfig)


@dataclass(frozen=True, slots=True)
class FlagValue:
    """A setting, and a value that it may have."""

    setting: str
    value: Any


def flag_value(setting: str, text: str) -> FlagValue:
    """Return what a change sets. Raises InvalidRequest that says which settings or values there are."""
    if setting not in FLAG_SETTINGS:
        names = ", ".join(sorted(FLAG_SETTINGS))
        raise InvalidRequest(f"{setting[:80]!r} cannot be changed at run time: there are {names}")
    field = FIELDS[setting]
    try:
        return FlagValue(setting, checked_value(field, parsed_value(field, text, setting), setting))
    except ConfigError as error:
        raise InvalidRequest(error.message) from error


def described_settings(config: GatewayConfig) -> tuple[FlagSetting, ...]:
    """Return all settings that can be changed, as they are in [gateway]."""
    return tuple(
        FlagSetting(
            name,
            shown_value(getattr(config, name)),
            allowed_values(FIELDS[name]),
            FIELDS[name].rule.help,
        )
        for name in sorted(FLAG_SETTINGS)
    )


def shown_value(value: Any) -> str:
    """Return a value as an operator writes it."""
    return str(value).lower() if isinstance(value, bool) else text_of_value(value)
