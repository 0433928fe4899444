"""Say what a cascade gives and costs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from services.cli.router.cascade_curve import EVERYBODY, NOBODY, CascadePoint
from services.cli.view.table import table

HEAD = ("min_logprob", "asked anew", "right", "seconds", "tokens")


def curve_words(curve: Sequence[CascadePoint]) -> str:
    """Return a table of all points; the time and the tokens are means of a question."""
    rows = [
        (
            _threshold(point.min_logprob),
            f"{point.anew:.0%}",
            f"{point.right:.1%}",
            f"{point.seconds:.2f}",
            f"{point.tokens:.0f}",
        )
        for point in curve
    ]
    return table(HEAD, rows)


def confidence_words(small: str, surer: float) -> str:
    """Say how much the confidence of the small model tells, "" where it has nothing to tell apart."""
    if math.isnan(surer):
        return ""
    return (
        f"of a right and a wrong answer of {small} the right one is surer in {surer:.0%} of all couples; "
        "at 50% a cascade is no better than asking as many anew by chance\n"
    )


def advice_words(models: tuple[str, str], chosen: CascadePoint, held_out: Sequence[CascadePoint]) -> str:
    """Return the rule to write, and what it does to questions that it was not chosen by.

    `held_out` are the points of those: nobody asked anew, the chosen threshold, everybody.
    """
    small, large = models
    nobody, found, everybody = held_out
    if chosen.min_logprob == NOBODY:
        rule = f'to = "{small}"    # no cascade: asking {large} anew makes hardly more of the answers right'
    elif chosen.anew == 1.0:
        rule = f'to = "{large}"    # no cascade: {small} is not surer where it is right'
    else:
        rule = f'to = "{small}"\ncascade = {{ to = "{large}", min_logprob = {chosen.min_logprob:g} }}'
    return "\n".join(
        [
            rule,
            "",
            f"of the questions held out {found.anew:.0%} are asked anew and {found.right:.1%} are right "
            f"({nobody.right:.1%} by {small}, {everybody.right:.1%} where {large} answers all of them anew)",
        ]
    )


def _threshold(min_logprob: float) -> str:
    ends = {NOBODY: "nobody", EVERYBODY: "everybody"}
    return ends.get(min_logprob, f"{min_logprob:.3f}")
