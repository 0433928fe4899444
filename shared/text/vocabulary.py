"""Check ids against a model's vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

from shared.errors import InvalidRequest


def check_vocabulary(token_ids: Sequence[int], vocab_tokens: int) -> None:
    """Raise InvalidRequest when one of `token_ids` is none of a vocabulary of that size."""
    if token_ids and not (min(token_ids) >= 0 and max(token_ids) < vocab_tokens):
        wrong = next(token_id for token_id in token_ids if not 0 <= token_id < vocab_tokens)
        raise InvalidRequest(f"token id {wrong} is not in the vocabulary of {vocab_tokens} tokens")
