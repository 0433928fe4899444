"""A virtual model name: rules by which one of several models answers, and those that it falls back to."""

from __future__ import annotations

from dataclasses import dataclass

FORMATS = ("text", "json_object", "json_schema", "regex", "grammar")
"""The constraints of an answer, as rules name them; `text` is an answer that nothing holds."""
PRIORITIES = ("low", "normal", "high")
"""The priorities of requests, as rules name them."""
LANGUAGES = (
    "en", "de", "fr", "es", "it", "pt", "nl", "pl", "tr", "ro", "vi",
    "ru", "el", "ar", "he", "hi", "th", "zh", "ja", "ko",
)  # fmt: skip
"""The languages that rules may name: a gateway tells them apart by script and by common words."""


@dataclass(frozen=True, slots=True)
class ModelShare:
    """A model and its share of the requests; only the ratio to other shares of the rule counts."""

    model: str
    share: float


@dataclass(frozen=True, slots=True)
class TtftBound:
    """A bound on the time to the first token that is predicted of `model`, in milliseconds."""

    model: str
    ms: float


@dataclass(frozen=True, slots=True)
class RuleConditions:
    """All of these have to hold; what is None or empty asks nothing.

    Tokens are those of a prompt of ids, else estimated. `weight` is that of the API key. `left_ms` is the
    time until the deadline of the first token. `hard` is the estimate of the virtual name's classifier.
    """

    min_chars: int | None = None
    max_chars: int | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    min_weight: int | None = None
    max_weight: int | None = None
    min_left_ms: int | None = None
    max_left_ms: int | None = None
    tenants: tuple[str, ...] = ()
    priorities: tuple[str, ...] = ()
    formats: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    tools: bool | None = None
    ttft_above: tuple[TtftBound, ...] = ()
    ttft_below: tuple[TtftBound, ...] = ()
    hard_above: float | None = None
    hard_below: float | None = None

    @property
    def asks_classifier(self) -> bool:
        return self.hard_above is not None or self.hard_below is not None


ALWAYS = RuleConditions()


@dataclass(frozen=True, slots=True)
class Cascade:
    """The model that answers anew where the first one was unsure: where the mean log-probability of the
    tokens of its answer, before temperature, is below `min_logprob`."""

    to: str
    min_logprob: float


@dataclass(frozen=True, slots=True)
class ModelRule:
    """One rule: under `conditions` one of `to` answers, of several by share. `fallback` None: that of the
    virtual name. `cascade`: who answers anew, None for nobody."""

    name: str
    to: tuple[ModelShare, ...]
    conditions: RuleConditions = ALWAYS
    fallback: tuple[str, ...] | None = None
    cascade: Cascade | None = None


@dataclass(frozen=True, slots=True)
class VirtualModel:
    """A name that clients may ask for. The first rule that holds counts, and the last one always does.

    `fallback`: the models that a request goes on to, in order, where the chosen one is shed, down or too
    slow. `max_ttft_ms`: a model whose first token is predicted later is passed over where another is left,
    None: the deadline alone counts. `classifier` is the path of a file of `penstock router train`, "" for
    none.
    """

    name: str
    rules: tuple[ModelRule, ...]
    fallback: tuple[str, ...] = ()
    max_ttft_ms: float | None = None
    classifier: str = ""

    def fallback_of(self, rule: ModelRule) -> tuple[str, ...]:
        return self.fallback if rule.fallback is None else rule.fallback

    @property
    def targets(self) -> tuple[str, ...]:
        """Return every model that may answer, each once, in the order in which they are named."""
        named = [share.model for rule in self.rules for share in rule.to]
        named += [rule.cascade.to for rule in self.rules if rule.cascade is not None]
        named += [model for rule in self.rules for model in self.fallback_of(rule)]
        return tuple(dict.fromkeys(named))
