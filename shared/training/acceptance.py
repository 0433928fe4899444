"""Count how many of a draft's tokens the target would have said itself, and how many an n-gram lookup's.

Drafts are accepted where they equal the target's own draw, and draws depend on seed, position and id alone:
so a draft that goes on from a part of the target's answer, with its parameters, is accepted up to where the
two part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from shared.engine import LLM, SamplingParams
from shared.engine.scheduling.ngram_index import NgramIndex

LONGEST_DRAFT = 8
STRIDE_TOKENS = 8
"""The distance between two places of an answer that are drafted from."""


@dataclass(frozen=True, slots=True)
class TargetAnswer:
    """A prompt, what the target answers to it, and how it draws."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    params: SamplingParams

    @property
    def places(self) -> range:
        """Return where drafts begin: with room for a whole one behind it."""
        return range(1, len(self.tokens) - LONGEST_DRAFT + 1, STRIDE_TOKENS)

    def text_at(self, place: int) -> tuple[int, ...]:
        """Prompt and answer up to `place`."""
        return self.prompt + self.tokens[:place]


@dataclass(frozen=True, slots=True)
class DraftAcceptance:
    """`alone[j]`: how often draft token j + 1 is right where all before it are; `together[j]`: with them.
    `offered`: the share of places that are drafted for at all."""

    drafts: int
    alone: tuple[float, ...]
    together: tuple[float, ...]
    offered: float = 1.0

    def tokens_per_step(self, length: int) -> float:
        """Return the tokens of one target step that verifies `length` drafts: the accepted ones and the
        target's own."""
        return 1 + sum(self.together[:length])


def target_answers(
    target: LLM, prompts: Sequence[Sequence[int]], temperature: float, num_tokens: int, seed: int
) -> list[TargetAnswer]:
    """Answers of up to `num_tokens` tokens."""
    params = [
        SamplingParams(temperature=temperature, seed=seed + index, max_tokens=num_tokens)
        for index in range(len(prompts))
    ]
    said = target.generate(prompts, params)
    return [
        TargetAnswer(tuple(prompt), answer.token_ids, each)
        for prompt, answer, each in zip(prompts, said, params, strict=True)
    ]


def accept_draft_model(draft: LLM, answers: Sequence[TargetAnswer]) -> DraftAcceptance:
    """Count the draft model's guesses that are accepted, at every place of the answers."""
    places = [(answer, place) for answer in answers for place in answer.places]
    guesses = draft.generate(
        [answer.text_at(place) for answer, place in places],
        [replace(answer.params, max_tokens=LONGEST_DRAFT, ignore_eos=True) for answer, _ in places],
    )
    return _acceptance(
        (answer.tokens[place:], guess.token_ids)
        for (answer, place), guess in zip(places, guesses, strict=True)
    )


def accept_ngrams(answers: Sequence[TargetAnswer]) -> DraftAcceptance:
    """Count the accepted guesses that decode workers draft from the text itself, without a draft model."""
    return _acceptance(pair for answer in answers for pair in _lookups(answer))


def _lookups(answer: TargetAnswer) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """Yield, for every place, how the answer goes on and what n-gram lookup drafts there."""
    lookup = NgramIndex()
    for place in answer.places:
        text = answer.text_at(place)
        lookup.index(text, len(text))
        yield answer.tokens[place:], lookup.look_up(text, LONGEST_DRAFT).token_ids


def _acceptance(pairs: Iterable[tuple[Sequence[int], Sequence[int]]]) -> DraftAcceptance:
    right = [0] * LONGEST_DRAFT
    count = offered = 0
    for said, guess in pairs:
        count += 1
        offered += bool(guess)
        for place, (one, other) in enumerate(zip(said, guess, strict=False)):
            if one != other:
                break
            right[place] += 1
    before = [count, *right[:-1]]
    alone = tuple(hit / of if of else 0.0 for hit, of in zip(right, before, strict=True))
    together = tuple(hit / count if count else 0.0 for hit in right)
    return DraftAcceptance(count, alone, together, offered / count if count else 0.0)
