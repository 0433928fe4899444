"""Streaming detokenization, exact: the deltas add up to what decoding everything at once gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import cast

from shared.text.decoder_stages import (
    DecoderStage,
    DecoderStageFactory,
    fallback_byte,
    is_settled,
    plain_text,
    run_stages,
)

PROMPT_TAIL_TOKENS = 64
"""The last prompt ids that an `IncrementalDecoder` should see (`Open.prompt_tail`). The text of the next
token depends on whether it is the first visible one (one token of context), and on the bytes of a character
that the prompt ends in the middle of (at most three tokens of a byte-level tokenizer). Special tokens are
invisible and come in small groups between turns, hence 64 and not 4. Only with byte-fallback tokens does more
count, the whole unbroken run of them: there `settled_tail` makes a cut run begin with a character, after
which the cut can be seen only by a prompt that is invalid UTF-8 further than 64 tokens back."""

Piece = Callable[[int], str | None]
"""id → token string; None for special tokens and ids without a token, which have no text."""


class PlainTexts(dict[int, str | None]):
    """The text of each id that always gives the same where the stages are settled; None where it has to go
    through them, as special tokens have, which some streams show. Filled as ids come."""

    def __init__(self, piece: Piece, stages: Sequence[DecoderStageFactory]) -> None:
        super().__init__()
        self._piece = piece
        self._stages = stages

    def __missing__(self, token_id: int) -> str | None:
        token = self._piece(token_id)
        text = None if token is None else plain_text(token, self._stages)
        self[token_id] = text
        return text


class IncrementalDecoder:
    """Text of one stream of token ids, in the context of the prompt's last ids.

    With prompt_text = decode(prompt tail) without an incomplete character at its end, all deltas
    together are decode(prompt tail + pushed ids)[len(prompt_text):], special tokens skipped. A
    delta is text that no later token can change, given as early as that is known. A push costs
    O(its tokens); most are looked up in `plain`.
    """

    def __init__(
        self,
        piece: Piece,
        stages: Sequence[DecoderStageFactory],
        prompt_tail_ids: Iterable[int] = (),
        *,
        plain: PlainTexts | None = None,
    ) -> None:
        self._piece = piece
        self._plain = PlainTexts(piece, stages) if plain is None else plain
        self._stages = [make() for make in stages]
        self._settled = is_settled(self._stages)
        tail = list(prompt_tail_ids)
        through: list[int] = []
        for token_id in tail:
            settles = self._plain[token_id] is not None
            if settles and self._settled and not through:
                continue  # it leaves the stages as they are
            through.append(token_id)
            if settles:
                self._pass(through)
                through = []
        self._pass(through)
        self._prompt_chars_left = 0
        if not self._settled:
            # What the stages still hold back may belong to the prompt's text: it is cut off when it comes.
            prompt = [make() for make in stages]
            _run(prompt, tail, piece)
            self._prompt_chars_left = len(_finish(prompt, drop_incomplete=True))

    def push(self, token_ids: Sequence[int]) -> str:
        """The text that became final with these ids."""
        if self._settled:
            plain = self._plain
            texts = [plain[token_id] for token_id in token_ids]
            if None not in texts:
                return "".join(cast("list[str]", texts))
        return self._output(self._pass(token_ids))

    def push_plain(self, token_id: int) -> str | None:
        """`push` of an id whose text needs no other; None, and nothing happens, where it may."""
        return self._plain[token_id] if self._settled else None

    def finish(self) -> str:
        """The text held back; an incomplete character becomes U+FFFD. Nothing may be pushed afterwards."""
        return self._output(_finish(self._stages, drop_incomplete=False))

    def _pass(self, token_ids: Sequence[int]) -> str:
        text = self._through(token_ids)
        self._settled = is_settled(self._stages)
        return text

    def _through(self, token_ids: Iterable[int]) -> str:
        return _run(self._stages, token_ids, self._piece)

    def _output(self, text: str) -> str:
        if not self._prompt_chars_left:
            return text
        output = text[self._prompt_chars_left :]
        self._prompt_chars_left = max(0, self._prompt_chars_left - len(text))
        return output


def settled_tail(piece: Piece, prompt_tail_ids: Sequence[int]) -> Sequence[int]:
    """`prompt_tail_ids` without a character at the front whose beginning was cut off.

    Only byte-fallback tokens matter: a run of them that begins inside a character would be invalid as
    a whole. A tail shorter than PROMPT_TAIL_TOKENS is the whole prompt and stays as it is.
    """
    if len(prompt_tail_ids) < PROMPT_TAIL_TOKENS:
        return prompt_tail_ids
    for start, token_id in enumerate(prompt_tail_ids):
        token = piece(token_id)
        byte = None if token is None else fallback_byte(token)
        if byte is None or byte & 0xC0 != 0x80:
            return prompt_tail_ids[start:]
    return ()


def _run(stages: Sequence[DecoderStage], token_ids: Iterable[int], piece: Piece) -> str:
    return run_stages(stages, [token for token in map(piece, token_ids) if token is not None])


def _finish(stages: Sequence[DecoderStage], *, drop_incomplete: bool) -> str:
    tokens: list[str] = []
    for stage in stages:
        tokens = [out for token in tokens for out in stage.push(token)]
        tokens.extend(stage.finish(drop_incomplete=drop_incomplete))
    return "".join(tokens)
