"""Tell the second of the two workers that need a grammar what its trial at the first one has shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GrammarTried:
    """decode → prefill: the request's grammar has been tried here; compile it without a trial.

    `took_us`: the CPU time that compiling took in the trial. With a `refusal`, which is the sentence for its
    client, the grammar cannot be used.
    """

    took_us: int
    refusal: str
