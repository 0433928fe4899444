"""Write the README.md of a draft head: how often it is right, how well it knows, what it gains."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shared.training.acceptance import DraftAcceptance
from shared.training.draft_worth import WORTH_HAVING
from shared.training.heads.head_acceptance import LONGEST_HEAD_DRAFT, MeasuredDrafts
from shared.training.heads.head_shape import HeadShape
from shared.training.heads.head_worth import HeadPrices, head_gain

COUNTED_LENGTHS = (2, 3, 4)
PRICES = HeadPrices()
PUBLISHED = (
    "Published heads, greedy: on Spec-Bench with Vicuna-7B Medusa makes 2.32 tokens a step, Hydra 3.26 and "
    "EAGLE 3.57, with trees of drafts (github.com/hemingkx/Spec-Bench, Leaderboard.md); on MT-bench with "
    "Qwen3-1.7B AngelSlim's EAGLE-3 makes 2.17 (angelslim.readthedocs.io, benchmarks of Eagle3)."
)


@dataclass(frozen=True, slots=True)
class MeasuredHead:
    """Drafts at one temperature, on one set of prompts, and what a lookup in the text alone gets right."""

    prompts: str
    temperature: float
    drafts: MeasuredDrafts
    lookup: DraftAcceptance


@dataclass(frozen=True, slots=True)
class HeadFacts:
    target: str
    shape: HeadShape
    known_share: float  # of the generated tokens, those that the head knows
    minutes: float
    taught_tokens: int
    measured: Sequence[MeasuredHead]


def head_card(facts: HeadFacts) -> str:
    """The text, in Markdown."""
    shape = facts.shape
    places = " | ".join(f"{place}." for place in range(1, LONGEST_HEAD_DRAFT + 1))
    lines = [
        f"# A draft head for {facts.target}",
        "",
        f"It drafts from the target's hidden states after layers {', '.join(map(str, shape.tap_layers))}: "
        f"{shape.num_blocks} blocks, {shape.hidden_size} wide, {shape.num_parameters / 1e6:.1f} M "
        f"parameters, {shape.draft_vocab_size} of the target's {shape.vocab_size} tokens "
        f"({facts.known_share:.1%} of what it says). Made by `penstock distill --kind head` in "
        f"{facts.minutes:.0f} minutes from {facts.taught_tokens} tokens that the target generated. It works "
        "beside this target alone.",
        "",
        "## How often it is right",
        "",
        "The share of draft tokens that equal the target's own draw, where all before them in the draft do, "
        "on prompts that nothing was learned from.",
        "",
        f"| prompts | temperature | drafts by | {places} | tokens per step |",
        "|---|---|---|" + "---|" * (LONGEST_HEAD_DRAFT + 1),
    ]
    for each in facts.measured:
        for name, accepted in (("this head", each.drafts.acceptance()), ("n-gram lookup", each.lookup)):
            cells = " | ".join(f"{share:.2f}" for share in accepted.alone[:LONGEST_HEAD_DRAFT])
            tokens = accepted.tokens_per_step(LONGEST_HEAD_DRAFT)
            lines.append(f"| {each.prompts} | {each.temperature:g} | {name} | {cells} | {tokens:.2f} |")
    lines += ["", PUBLISHED, "", "## How well it knows", ""]
    lines += [
        "| prompts | temperature | how sure it is: how often it is right (drafts) |",
        "|---|---|---|",
    ]
    for each in facts.measured:
        cells = ", ".join(
            f"{bucket.confidence:.2f}: {bucket.right:.2f} ({bucket.drafts})"
            for bucket in each.drafts.calibration()
        )
        lines.append(f"| {each.prompts} | {each.temperature:g} | {cells} |")
    lines += ["", "## What it gains", ""]
    lines += [sentence for each in facts.measured for sentence in _gain_lines(each)]
    lines.append("")
    return "\n".join(lines)


def _gain_lines(each: MeasuredHead) -> Iterator[str]:
    gains = [head_gain(each.drafts, longest, PRICES) for longest in COUNTED_LENGTHS]
    found = "; ".join(
        f"up to {gain.longest}: {gain.tokens_per_step:.2f} tokens a step, {gain.speedup:.2f} times the speed"
        for gain in gains
    )
    yield f"- {each.prompts}, temperature {each.temperature:g}: {found}."


def head_verdict(each: MeasuredHead) -> str:
    """One sentence for what the head gains at best."""
    best = max(
        (head_gain(each.drafts, length, PRICES) for length in COUNTED_LENGTHS), key=lambda g: g.speedup
    )
    pays = "pays" if best.speedup >= WORTH_HAVING else "does not pay"
    return (
        f"{each.prompts}, temperature {each.temperature:g}: the head {pays}: {best.speedup:.2f} times the "
        f"speed with {best.tokens_per_step:.2f} tokens a step, where a drafted token costs "
        f"{PRICES.drafted} and a verified one {PRICES.verified} of the target's step."
    )


def head_pays(each: MeasuredHead) -> bool:
    """Return whether the head is worth having for such prompts."""
    return any(head_gain(each.drafts, length, PRICES).speedup >= WORTH_HAVING for length in COUNTED_LENGTHS)
