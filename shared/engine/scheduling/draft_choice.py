"""Choose how many of the drafts that were offered are worth verifying."""

from __future__ import annotations

import math

from shared.engine.sequence import STARTING_ACCEPTANCE, LiveSequence

_MEMORY = 0.9  # weight of the past at each draft that was judged right or wrong
_RECOVERY = 0.02  # of the way back to STARTING_ACCEPTANCE at each step whose drafts were all left out
_SURE = 0.99  # no sequence is surer than this


def drafts_that_pay(sequence: LiveSequence, row_us: float, step_us: float, num_decoding: int) -> int:
    """The longest draft of which every token is expected to save more time than its row costs.

    Draft j is right with all before it with probability acceptance ** j. A right one saves a token's share
    of a step, `step_us / num_decoding`; a row costs `row_us`.
    """
    needed = row_us * num_decoding / step_us if step_us > 0 else 0.0
    if needed <= 0:
        return len(sequence.drafts)
    if needed >= 1:
        return 0
    return int(math.log(needed) / math.log(min(_SURE, max(sequence.acceptance, 1e-6))))


def judge_drafts(sequence: LiveSequence, proposed: int, accepted: int) -> None:
    """Learn from a step that verified `proposed` drafts; those after the first wrong one say nothing."""
    judged = min(proposed, accepted + 1)
    memory = _MEMORY**judged
    if judged:
        sequence.acceptance = memory * sequence.acceptance + (1 - memory) * accepted / judged


def forgive_drafts(sequence: LiveSequence) -> None:
    """Give a sequence whose drafts were all left out another chance after a while: text changes."""
    sequence.acceptance += _RECOVERY * (STARTING_ACCEPTANCE - sequence.acceptance)
