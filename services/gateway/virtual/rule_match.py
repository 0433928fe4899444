"""Find the first rule of a virtual name that holds for a request. Pure."""

from __future__ import annotations

from dataclasses import replace

from services.gateway.virtual.rule_facts import RuleFacts
from shared.files.virtual_model import ModelRule, RuleConditions, VirtualModel


def first_rule(virtual: VirtualModel, facts: RuleFacts) -> ModelRule:
    """Return the rule that counts: the last one asks nothing."""
    return next(rule for rule in virtual.rules if holds(rule.conditions, facts))


def needs_classifier(virtual: VirtualModel, facts: RuleFacts) -> bool:
    """Whether the rule that counts depends on how hard the question is."""
    for rule in virtual.rules:
        conditions = rule.conditions
        if holds(replace(conditions, hard_above=None, hard_below=None), facts):
            return conditions.asks_classifier
    return False


def holds(asked: RuleConditions, facts: RuleFacts) -> bool:
    """Whether all conditions do; what costs more is asked last."""
    return (
        _has_property(asked, facts)
        and _is_within(facts.request.weight, asked.min_weight, asked.max_weight)
        and _is_within(facts.left_ms, asked.min_left_ms, asked.max_left_ms)
        and _has_length(asked, facts)
        and (not asked.languages or facts.language in asked.languages)
        and _is_hard_enough(asked, facts.hardness)
        and all(facts.predict_ms(bound.model) > bound.ms for bound in asked.ttft_above)
        and all(facts.predict_ms(bound.model) < bound.ms for bound in asked.ttft_below)
    )


def _has_property(asked: RuleConditions, facts: RuleFacts) -> bool:
    return (
        (not asked.tenants or facts.request.tenant in asked.tenants)
        and (not asked.priorities or facts.priority in asked.priorities)
        and (not asked.formats or facts.answer_format in asked.formats)
        and (asked.tools is None or asked.tools == facts.has_tools)
    )


def _has_length(asked: RuleConditions, facts: RuleFacts) -> bool:
    """A prompt of ids has no length in characters, and no condition about that holds for it."""
    asks_chars = (asked.min_chars, asked.max_chars) != (None, None)
    if asks_chars and facts.request.token_ids is not None:
        return False
    if asks_chars and not _is_within(facts.chars, asked.min_chars, asked.max_chars):
        return False
    if (asked.min_tokens, asked.max_tokens) != (None, None):
        return _is_within(facts.tokens, asked.min_tokens, asked.max_tokens)
    return True


def _is_within(value: float, least: int | None, most: int | None) -> bool:
    return (least is None or value >= least) and (most is None or value <= most)


def _is_hard_enough(asked: RuleConditions, hardness: float | None) -> bool:
    if not asked.asks_classifier:
        return True
    if hardness is None:
        return False
    above = asked.hard_above is None or hardness > asked.hard_above
    return above and (asked.hard_below is None or hardness < asked.hard_below)
