"""README.md of a draft: what it is, how often it is right, what that costs, and whether it pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.training.acceptance import LONGEST_DRAFT, DraftAcceptance
from shared.training.draft_shape import DraftPlan
from shared.training.draft_worth import WORTH_HAVING, Worth, worth_of
from shared.training.step_times import StepTimes


@dataclass(frozen=True, slots=True)
class MeasuredAcceptance:
    """An acceptance measured at one temperature, on one set of prompts."""

    prompts: str  # what they are
    temperature: float
    draft: DraftAcceptance
    lookup: DraftAcceptance


@dataclass(frozen=True, slots=True)
class CardFacts:
    target: str
    plan: DraftPlan
    threads: int
    quantization: str
    trained_minutes: float
    taught_tokens: int
    measured: Sequence[MeasuredAcceptance]
    times: StepTimes


def draft_card(facts: CardFacts) -> str:
    """The text, in Markdown."""
    shape, times = facts.plan.shape, facts.times
    places = " | ".join(f"{place}." for place in range(1, LONGEST_DRAFT + 1))
    lines = [
        f"# A draft for {facts.target}",
        "",
        f"Llama layout, layers {shape.num_hidden_layers}, hidden size {shape.hidden_size}, tied embedding of "
        f"{shape.vocab_size} tokens, {facts.plan.num_parameters / 1e6:.1f} M parameters; made by "
        f"`penstock distill` in {facts.trained_minutes:.0f} minutes from {facts.taught_tokens} tokens that "
        "the target generated. It has the target's tokenizer and is no model to talk with.",
        "",
        "## How often it is right",
        "",
        "The share of draft tokens that equal the target's own draw, where all before them in the draft do.",
        "",
        f"| prompts | temperature | drafts by | {places} | tokens per step |",
        "|---|---|---|" + "---|" * (LONGEST_DRAFT + 1),
    ]
    for each in facts.measured:
        for name, accepted in (("this draft", each.draft), ("n-gram lookup", each.lookup)):
            cells = " | ".join(f"{share:.2f}" for share in accepted.alone)
            tokens = accepted.tokens_per_step(LONGEST_DRAFT)
            lines.append(f"| {each.prompts} | {each.temperature:g} | {name} | {cells} | {tokens:.2f} |")
    verify = ", ".join(f"{length}: {us / 1000:.2f}" for length, us in times.verify_us.items())
    lines += [
        "",
        "## What it costs",
        "",
        f"One stream, {facts.threads} threads, weights {facts.quantization}: a step of the target "
        f"{times.target_us / 1000:.2f} ms, a step of the draft {times.draft_us / 1000:.2f} ms "
        f"({draft_ratio(times):.2f} of it); the target's step that verifies so many drafts, in ms: {verify}.",
        "",
        "## Whether it pays",
        "",
        *(f"- {sentence}" for each in facts.measured for sentence in verdicts(each, times)),
        "",
    ]
    return "\n".join(lines)


def draft_ratio(times: StepTimes) -> float:
    return times.draft_us / times.target_us if times.target_us else 0.0


def verdicts(each: MeasuredAcceptance, times: StepTimes) -> list[str]:
    """One sentence for the draft, on the target's cores and on cores of its own, and one for the lookup."""
    same, own = worth_of(each.draft, times, times.draft_us), worth_of(each.draft, times, 0.0)
    lookup = worth_of(each.lookup, times, 0.0)
    where = f"{each.prompts}, temperature {each.temperature:g}"
    return [
        f"{where}: on the target's own cores the draft {_gain(same)}; on cores of its own, at best, it "
        f"{_gain(own)}.",
        f"{where}: n-gram lookup, which decode workers do by themselves, {_gain(lookup)}; "
        + ("it is the better of the two." if lookup.speedup >= own.speedup else "the draft is the better."),
    ]


def pays_somewhere(each: MeasuredAcceptance, times: StepTimes) -> bool:
    """Return whether the draft is worth having, be it on cores of its own, and better than the lookup."""
    own = worth_of(each.draft, times, 0.0)
    return own.pays and own.speedup > worth_of(each.lookup, times, 0.0).speedup


def _gain(worth: Worth) -> str:
    if not worth.pays:
        return (
            f"does not pay ({worth.speedup:.2f} of the speed without; {WORTH_HAVING} would be worth having)"
        )
    return f"pays: {worth.speedup:.2f} times the speed, {worth.length} tokens at a time"
