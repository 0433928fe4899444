"""A short text of real sentences, and a writer over it."""

from __future__ import annotations

from services.cli.bench.plan.prompt_writer import PromptWriter
from services.cli.bench.plan.prose import Prose

SENTENCES = [
    f"The {noun} of the {place} was {state} when the morning came."
    for noun in ("keeper", "garden", "river", "bell", "road", "window")
    for place, state in (("village", "quiet"), ("harbour", "cold"), ("old mill", "full of light"))
] + ["Nobody had said so. Still they went on, and the day grew warm."] * 4


def prose() -> Prose:
    return Prose(" ".join(SENTENCES), "the sentences")


def writer(
    seed: int = 0, chars_per_token: float = 4.0, length_scale: float = 1.0, text_seed: int = 0
) -> PromptWriter:
    return PromptWriter(prose(), chars_per_token, length_scale, seed, text_seed)
