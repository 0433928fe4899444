"""Learn what a verified row costs beside so many sequences, from the steps that verified some."""

from __future__ import annotations

from dataclasses import dataclass

from shared.engine.cost_model import Features
from shared.engine.scheduling.draft_prices import DraftPrices

_MEMORY = 0.97  # of what is thirty verifying steps back a third
_PLAIN_MEMORY = (
    0.999  # and of a thousand others: where rows are dear nobody would see that they no longer are
)
_BELIEVED_ROWS = 2.0  # that the cost model's price weighs as much as
_MOST_SHARES = 3.0  # of a step's time that a row is taken to cost: it was held up
_ERROR_LEARNING = 0.1
_WORST_ERROR = 0.2  # of a step


@dataclass(slots=True)
class _RowSums:
    """Faded sums over steps that verified, and how far plain steps are off what they were predicted."""

    rows: float = 0.0
    us: float = 0.0
    error: float = 0.0


class RowCosts:
    """A row more costs little beside one sequence, whose step waits for memory, and nearly as much as a
    sequence beside thirty, where it is arithmetic that takes the time: more than the straight line through
    steps and prompts says. So steps are told apart by how many sequences they had, to a factor of two."""

    def __init__(self) -> None:
        self._costs: dict[int, _RowSums] = {}

    def observe(self, features: Features, prices: DraftPrices, us: float) -> None:
        """A step of sequences that decode, and of rows to verify, computed for `us`; without these rows it
        was predicted to take what `prices` say."""
        costs = self._costs.setdefault(features.sequences.bit_length(), _RowSums())
        rows = features.tokens - features.sequences
        plain_us = prices.step_us
        if not rows:
            error = max(-_WORST_ERROR, min(_WORST_ERROR, us / plain_us - 1))
            costs.error += _ERROR_LEARNING * (error - costs.error)
            costs.rows *= _PLAIN_MEMORY
            costs.us *= _PLAIN_MEMORY
            return
        keys_us = prices.key * prices.share_us * features.keys * rows / features.tokens
        more_us = us - plain_us * (1 + costs.error) - keys_us
        costs.rows = _MEMORY * costs.rows + rows
        costs.us = _MEMORY * costs.us + min(more_us, _MOST_SHARES * prices.share_us * rows)

    def row_us(self, sequences: int, believed_us: float) -> float:
        """Return what a row costs beside so many, of which the cost model believes `believed_us`."""
        costs = self._costs.get(sequences.bit_length())
        if costs is None:
            return believed_us
        return max(0.0, (costs.us + _BELIEVED_ROWS * believed_us) / (costs.rows + _BELIEVED_ROWS))
