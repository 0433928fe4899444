"""Rule which ids a sequence may draw next: min_tokens, allowed ids, bad words, grammar, thinking together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shared.engine.sampling.grammar import CompiledGrammar, GrammarState
from shared.engine.sampling.grammar_row import GrammarRow
from shared.engine.sampling.id_bits import IdBits, bits_of, is_within, with_id, without
from shared.engine.sampling.thinking_row import ThinkingRow
from shared.engine.sequence import LiveSequence
from shared.errors import InternalError
from shared.sampling.parameters import SamplingParams


@dataclass(frozen=True, slots=True)
class RowRule:
    """The rule of one draw: ids ruled out, and, unless None, the only ids allowed."""

    blocked_ids: Sequence[int] = ()
    allowed: IdBits | None = None


ANY_ID = RowRule()


class IdRules:
    """The rules of one sequence; they hold nothing that its tokens cannot rebuild. With a `grammar` they are
    asked for only when that is ready, and held.

    A grammar holds what follows the thinking, if there is any.
    """

    def __init__(self, sequence: LiveSequence, vocab_size: int) -> None:
        params = sequence.params
        self._sequence = sequence
        self._vocab_size = vocab_size
        self._allowed = bits_of(params.allowed_ids, vocab_size) if params.allowed_ids else None
        self._bad_ids = tuple(word[0] for word in params.bad_words if len(word) == 1)
        self._bad_endings: dict[int, list[tuple[int, ...]]] = {}  # longer words, by their last id but one
        for word in map(tuple, params.bad_words):
            if len(word) > 1:
                self._bad_endings.setdefault(word[-2], []).append(word)
        output_ids = sequence.tokens[sequence.prompt_len :]
        self.thinking: ThinkingRow | None = None
        if params.thinking is not None:
            self.thinking = ThinkingRow(params.thinking, holds_behind=params.grammar is not None)
            output_ids = [token_id for token_id in output_ids if not self.thinking.take(token_id)]
        self._grammar: GrammarRow | None = None
        if params.grammar is not None:
            if not isinstance(params.grammar, CompiledGrammar):
                raise InternalError(
                    "a sequence came in past the input processor: its grammar is not compiled"
                )
            self._grammar = GrammarRow(GrammarState(params.grammar, output_ids))

    @staticmethod
    def needed(params: SamplingParams) -> bool:
        limits = params.min_tokens or params.allowed_ids or params.bad_words
        return bool(limits or params.grammar or params.thinking)

    @property
    def grammar(self) -> GrammarRow | None:
        """The grammar, where it holds the next token."""
        return None if self.thinking is not None and self.thinking.is_thinking else self._grammar

    def rows(self, drafts: Sequence[int]) -> list[RowRule]:
        """One per draw: the next, then after each of `drafts`."""
        num_tokens = len(self._sequence.tokens)
        blocked = [self._blocked(num_tokens + index, drafts[:index]) for index in range(len(drafts) + 1)]
        if self.grammar is None:
            rules = [
                RowRule(each, self._allowed) if each or self._allowed is not None else ANY_ID
                for each in blocked
            ]
            return rules if self.thinking is None else self._with_closing(rules, self.thinking, drafts)
        masks = self.grammar.masks(len(blocked))
        rules = [self._within(mask, each) for mask, each in zip(masks, blocked, strict=True)]
        opening_id = None if self.thinking is None else self.thinking.opening_id
        if opening_id is not None and rules[0].allowed is not None:
            rules[0] = RowRule(rules[0].blocked_ids, with_id(rules[0].allowed, opening_id))
        return rules

    def ends(self, token_id: int) -> bool:
        """Return whether the sequence is over with the drawn `token_id`, which is taken in."""
        thought = self.thinking is not None and self.thinking.take(token_id)
        if token_id in self._sequence.end_ids:
            return True
        if thought or self.grammar is None:
            return False
        state = self.grammar.state
        return token_id in state.eos_ids or state.advance(token_id)

    def _with_closing(
        self, rules: list[RowRule], thinking: ThinkingRow, drafts: Sequence[int]
    ) -> list[RowRule]:
        """The rules, but for the draws that have to close the thinking."""
        forced = thinking.forced(drafts)
        return [
            rule if token_id is None else RowRule((), bits_of((token_id,), self._vocab_size))
            for rule, token_id in zip(rules, forced, strict=True)
        ]

    def _blocked(self, position: int, drafts: Sequence[int]) -> tuple[int, ...]:
        sequence = self._sequence
        blocked = self._bad_ids
        if not sequence.may_end_at(position):
            blocked += tuple(sorted(sequence.end_ids))
        if self._bad_endings:
            blocked += self._bad_words_end(drafts)
        return blocked

    def _bad_words_end(self, drafts: Sequence[int]) -> tuple[int, ...]:
        """The ids that would complete a bad word in output + drafts."""
        tokens, prompt_len = self._sequence.tokens, self._sequence.prompt_len
        if not drafts and len(tokens) == prompt_len:
            return ()
        words = self._bad_endings.get(drafts[-1] if drafts else tokens[-1], ())
        if not words:
            return ()
        longest = max(map(len, words)) - 1
        recent = (*tokens[max(prompt_len, len(tokens) - longest) :], *drafts)
        return tuple(word[-1] for word in words if recent[-len(word) + 1 :] == word[:-1])

    def _within(self, mask: IdBits | None, blocked: Sequence[int]) -> RowRule:
        """A grammar's mask under the other rules. Where the grammar wants the end, the end is allowed."""
        if mask is None:
            return ANY_ID
        assert self.grammar is not None
        eos_ids = self.grammar.state.eos_ids
        left = mask if self._allowed is None else mask & self._allowed
        left = without(left, [*blocked, *(eos_ids if self._sequence.params.ignore_eos else ())])
        if not left.any() and is_within(mask, eos_ids):
            return RowRule((), mask)
        return RowRule((), left)
