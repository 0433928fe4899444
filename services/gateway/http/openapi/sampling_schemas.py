"""Schemas of what all bodies that generate have: sampling parameters, and options that OpenAI has no field
for. Names and bounds are those of their definitions."""

from __future__ import annotations

from collections.abc import Sequence

from services.gateway.http.fields.agent_fields import PAUSES, PRIORITIES
from services.gateway.http.fields.penstock_options import (
    CACHE_MODES_BY_NAME,
    FLAGS,
    MILLISECONDS,
    ORDERS_BY_NAME,
    PRIORITIES_BY_NAME,
)
from services.gateway.http.fields.sampling_fields import SCALAR_FIELDS, TOKEN_ID, TOKEN_IDS, TOP_K_OFF
from services.gateway.http.fields.thinking_fields import EFFORTS_BY_NAME, THINKING_MS, THINKING_TOKENS
from services.gateway.http.openapi.schema_parts import (
    Schema,
    any_of,
    array,
    body_of,
    choice,
    flag,
    integer,
    number_within,
    or_null,
    ref,
    text,
)
from services.gateway.request.agent_hints import MAX_AGENT_SESSION_CHARS, MAX_NEXT_TOOL_CHARS
from services.gateway.request.cache_use import MAX_AGE_MS
from services.gateway.request.fallback_use import (
    MAX_FALLBACK_MODEL_CHARS,
    MAX_FALLBACK_MODELS,
    MAX_STICKY_KEY_CHARS,
)
from services.gateway.request.request import (
    MAX_CACHE_SALT_CHARS,
    MAX_DEADLINE_MS,
    MAX_STOP_CHARS,
    MAX_STOPS,
)
from services.gateway.request.retrieval_use import MAX_PASSAGES
from services.gateway.request.trimming_use import LEAST_PASSAGE_SHARE
from shared.messages import (
    MAX_CORPUS_CHARS,
    MAX_FILTER_CHARS,
    MAX_FILTER_VALUES,
    MAX_FILTERS,
    MAX_QUERY_CHARS,
)
from shared.sampling.parameters import (
    BIAS_BOUNDS,
    MAX_GRAMMAR_BYTES,
    MAX_LOGIT_BIAS_ENTRIES,
    MAX_STOP_TOKEN_IDS,
    PARAMETERS,
    Bounds,
)
from shared.text.stopping.regex_stops import MAX_STOP_REGEX_CHARS, MAX_STOP_REGEXES
from shared.text.thinking_formats import SWITCHES

_OPTION_HELP = {
    "deadline_ms": "the time for the whole answer",
    "ttft_deadline_ms": "the time for the first token",
    "inter_token_deadline_ms": "the time from a token to the next one",
    "client_sent_unix_us": "when the client sent it, so that the timeline has the way here",
}

_FLAG_HELP = {
    "timeline": "the answer ends with its timeline",
    "resumable": "events have ids; with the last as Last-Event-ID any gateway goes on with the stream",
}


def sampling_properties(lengths: Sequence[str]) -> dict[str, Schema]:
    """Return the fields that `read_sampling` and `read_seed` read; `lengths`: names of the longest answer."""
    made = {name: _parameter(name) for name in (*SCALAR_FIELDS, "seed")}
    made["top_k"] = any_of(made["top_k"], {"const": TOP_K_OFF}, help_text=PARAMETERS["top_k"].help)
    made |= {name: _parameter("max_tokens") for name in lengths}
    stop = text(most=MAX_STOP_CHARS, least=1)
    made["stop"] = any_of(stop, array(stop, most=MAX_STOPS), help_text="texts that end the answer")
    pattern = text(most=MAX_STOP_REGEX_CHARS, least=1)
    made["stop_regex"] = any_of(
        pattern, array(pattern, most=MAX_STOP_REGEXES), help_text="patterns of text that end the answer"
    )
    made["stop_token_ids"] = array(
        number_within(TOKEN_IDS), most=MAX_STOP_TOKEN_IDS, help_text=PARAMETERS["stop_token_ids"].help
    )
    made["ignore_eos"] = flag(PARAMETERS["ignore_eos"].help)
    made["logit_bias"] = {
        "type": "object",
        "description": "what is added to the logit of a token id",
        "propertyNames": {"pattern": f"^(?:{TOKEN_ID.pattern})$"},
        "additionalProperties": or_null(number_within(BIAS_BOUNDS)),
        "maxProperties": MAX_LOGIT_BIAS_ENTRIES,
    }
    made |= _thinking_properties()
    made["penstock"] = ref("PenstockOptions")
    made["nvext"] = ref("DynamoExtension")
    made["cache_salt"] = text("kept KV is shared only where this is the same", most=MAX_CACHE_SALT_CHARS)
    made["user"] = text("whose request it is: as penstock.sticky_key, where that is not said")
    return made


def penstock_options() -> Schema:
    some_model = text(least=1, most=MAX_FALLBACK_MODEL_CHARS)
    most = {name: MAX_DEADLINE_MS for name in MILLISECONDS if name.endswith("_ms")}
    made = {name: integer(None, most.get(name), _OPTION_HELP[name]) for name in MILLISECONDS}
    for name in most:
        made[name]["minimum"] = 1
    made["client_sent_unix_us"] |= {"minimum": 0, "maximum": 2**63 - 1}
    made |= {name: flag(_FLAG_HELP[name]) for name in FLAGS}
    made |= {
        "priority": choice(PRIORITIES_BY_NAME, "what is shed first, and whose turn is first"),
        "cache_salt": text("kept KV is shared only where this is the same", most=MAX_CACHE_SALT_CHARS),
        "regex": text("the whole answer matches it", most=MAX_GRAMMAR_BYTES),
        "grammar": text("the whole answer matches it, in Lark's notation or GBNF", most=MAX_GRAMMAR_BYTES),
        "retrieval": any_of({"type": "boolean"}, ref("Retrieval"), help_text="answer from passages"),
        "cache": any_of(choice(CACHE_MODES_BY_NAME), ref("Cache"), help_text="an earlier answer will do"),
        "trimming": any_of(
            {"type": "boolean"},
            ref("Trimming"),
            help_text="budgets of the prompt; false: nothing is left out",
        ),
        "sticky_key": text(
            "requests with the same one keep to one of several models", most=MAX_STICKY_KEY_CHARS
        ),
        "fallback": any_of(
            {"type": "boolean"},
            some_model,
            array(some_model, most=MAX_FALLBACK_MODELS),
            help_text="whether another model may answer, or which",
        ),
        "session": any_of(
            text("its name", least=1, most=MAX_AGENT_SESSION_CHARS),
            ref("AgentSession"),
            help_text="which agent this is a call of",
        ),
        "thinking": ref("Thinking"),
    }
    return body_of(made, closed=True)


def thinking_options() -> Schema:
    made = {
        "effort": choice(EFFORTS_BY_NAME, "how much the model thinks before it answers"),
        "max_tokens": number_within(THINKING_TOKENS, "its thinking is closed after so many tokens"),
        "deadline_ms": number_within(THINKING_MS, "and so long after the request came"),
    }
    return body_of(made, closed=True)


def _thinking_properties() -> dict[str, Schema]:
    """Return the fields of a body that `read_thinking` reads beside `penstock.thinking`."""
    effort = choice(EFFORTS_BY_NAME, "as penstock.thinking.effort")
    return {
        "reasoning_effort": effort,
        "reasoning": body_of({"effort": effort}),
        "thinking_token_budget": number_within(THINKING_TOKENS, "as penstock.thinking.max_tokens"),
        "chat_template_kwargs": body_of({name: flag("false: no thinking") for name in SWITCHES}),
    }


def agent_session() -> Schema:
    name = text(least=1, most=MAX_AGENT_SESSION_CHARS)
    made = {
        "name": name,
        "parent": text("the session of the agent that began this one", most=MAX_AGENT_SESSION_CHARS),
        "final": flag("no call of the session follows"),
        "pause_ms": number_within(PAUSES, "the time from the answer to the next call"),
        "warm_next": flag("compute the next prompt ahead"),
        "next_tool": text("the tool that the answer is expected to call", most=MAX_NEXT_TOOL_CHARS),
    }
    return body_of(made, "name", closed=True)


def dynamo_extension() -> Schema:
    """Return what is read of the hints that clients of Dynamo send; there may be more."""
    name = text("of the agent, where no header and no penstock.session says it")
    hints = {
        "priority": number_within(PRIORITIES, "above 0 as high, below 0 as low"),
        "speculative_prefill": flag("as penstock.session.warm_next"),
    }
    context = {"session_id": name, "parent_session_id": name}
    return body_of({"agent_hints": body_of(hints), "agent_context": body_of(context)})


def ask_options() -> Schema:
    """Return the schema of `penstock` in a body that generates nothing: the others of its fields are of no
    use there."""
    return body_of({"deadline_ms": integer(1, MAX_DEADLINE_MS, "the time for the answer")})


def retrieval_options() -> Schema:
    value = text(most=MAX_FILTER_CHARS)
    return body_of(
        {
            "corpus": text("what is searched", most=MAX_CORPUS_CHARS),
            "query": text("what is searched for in place of the question", most=MAX_QUERY_CHARS),
            "k": integer(1, MAX_PASSAGES, "the most passages"),
            "max_tokens": integer(1, 2**31 - 1, "the most tokens of passages"),
            "order": choice(ORDERS_BY_NAME, "how passages stand in the prompt"),
            "score_threshold": number_within(
                Bounds(0.0, 1.0), "the least score of a passage; without any the request fails"
            ),
            "may_degrade": flag("an answer without passages will do where there is no time for them"),
            "filters": {
                "type": "object",
                "description": "metadata that passages must have: a value, or several of which one will do",
                "maxProperties": MAX_FILTERS,
                "propertyNames": {"minLength": 1, "maxLength": MAX_FILTER_CHARS},
                "additionalProperties": or_null(any_of(value, array(value, least=1, most=MAX_FILTER_VALUES))),
            },
        }
    )


def trimming_options() -> Schema:
    made = {
        "max_passage_tokens": integer(
            0, 2**31 - 1, "of all passages, by their best sentences; 0: any number"
        ),
        "passage_share": number_within(
            Bounds(LEAST_PASSAGE_SHARE, 1.0), "of the tokens that passages have whole"
        ),
        "duplicates": flag("a sentence that another passage says already is left out"),
        "max_prompt_tokens": integer(0, 2**31 - 1, "of a chat, without its oldest turns; 0: any number"),
        "max_summary_tokens": integer(
            0, 2**31 - 1, "of a summary of those turns, by their sentences that say most; 0: none"
        ),
        "max_tool_tokens": integer(0, 2**31 - 1, "of all tools, by those that are asked for; 0: any number"),
        "compact": flag("space that says nothing is left out"),
        "fit_context": flag("the oldest turns are left out where the context has no room for them"),
    }
    return body_of(made, closed=True)


def cache_options() -> Schema:
    made = {
        "mode": choice(CACHE_MODES_BY_NAME),
        "max_age_ms": integer(0, MAX_AGE_MS, "the oldest answer that will do; 0: any"),
        "any_seed": flag("an answer that was drawn with another seed will do"),
        "min_similarity": number_within(Bounds(0.0, 1.0), "how alike the questions have to be"),
    }
    return body_of(made, "mode")


def _parameter(name: str) -> Schema:
    definition = PARAMETERS[name]
    assert definition.bounds is not None
    return number_within(definition.bounds, definition.help)
