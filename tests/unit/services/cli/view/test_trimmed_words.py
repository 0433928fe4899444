"""What was left out of a prompt, in one line."""

from __future__ import annotations

from services.cli.view.trimmed_words import trimmed_words
from shared.messages import TRIMMED_PARTS, TrimmedPart


def test_each_part_is_counted_in_words_and_the_tokens_together() -> None:
    parts = [TrimmedPart("passages", 1, 60), TrimmedPart("sentences", 2, 41)]
    assert trimmed_words(parts) == "1 passage, 2 sentences of passages (101 tokens)"


def test_every_part_has_words_of_its_own_and_a_new_one_keeps_its_word() -> None:
    known = {trimmed_words([TrimmedPart(what, 2, 3)]) for what in TRIMMED_PARTS}
    assert not known & {f"2 {what} (3 tokens)" for what in TRIMMED_PARTS if what != "passages"}
    assert trimmed_words([TrimmedPart("images", 2, 3)]) == "2 images (3 tokens)"
