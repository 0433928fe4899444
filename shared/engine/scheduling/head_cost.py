"""Learn what it takes to ask a draft head: a part for each reading of its weights, and one for each row."""

from __future__ import annotations

_MEMORY = 0.95  # of what is twenty askings back a third
_ROW_DOUBT = 1e-3  # so firmly a row is held for what it was, while each reading was for one alone


class HeadCost:
    """time = pass_us * passes + row_us * rows, neither of them negative.

    All rows of a step are one call, whose passes are as many as its longest draft has tokens; each row is in
    as many of them as tokens were computed for it. Least squares of the error relative to what was observed,
    so that a call that was held up hardly counts. While all calls were for one row, a row takes nothing.
    """

    __slots__ = ("_of_both", "_of_passes", "_of_rows", "_passes", "_rows", "pass_us", "row_us")

    def __init__(self) -> None:
        self.pass_us = 0.0
        self.row_us = 0.0
        self._of_passes = self._of_rows = self._of_both = 0.0  # faded sums of products
        self._passes = self._rows = 0.0

    def observe(self, passes: int, rows: int, us: float) -> None:
        """A call took so long."""
        if us <= 0 or passes < 1:
            return
        p, r = passes / us, rows / us
        self._of_passes = _MEMORY * self._of_passes + p * p
        self._of_rows = _MEMORY * self._of_rows + r * r
        self._of_both = _MEMORY * self._of_both + p * r
        self._passes = _MEMORY * self._passes + p
        self._rows = _MEMORY * self._rows + r
        hold = _ROW_DOUBT * self._of_rows
        of_rows, sum_of_rows = self._of_rows + hold, self._rows + hold * self.row_us
        of_both = self._of_passes * of_rows - self._of_both * self._of_both
        row_us = (self._of_passes * sum_of_rows - self._of_both * self._passes) / of_both
        self.row_us = max(0.0, row_us)
        self.pass_us = (self._passes - self._of_both * self.row_us) / self._of_passes
        if self.pass_us < 0.0:
            self.pass_us, self.row_us = 0.0, sum_of_rows / of_rows
