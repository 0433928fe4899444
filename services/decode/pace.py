"""Measure how fast a decode worker is: gateways and its own admission go by it."""

from __future__ import annotations

from shared.engine import StepResult
from shared.worker.rate import MEASURED_STEP_TOKENS, MeanTime, TokenRate


class DecodePace:
    def __init__(self, max_batch_tokens: int) -> None:
        self._step_time = MeanTime()
        self._plain_step_time = MeanTime()
        self._transfer_time = MeanTime()
        self._prompt_rate = TokenRate(min(MEASURED_STEP_TOKENS, max_batch_tokens))

    def observe_step(self, result: StepResult) -> None:
        if not result.batch_tokens:  # all waited for masks
            return
        if result.num_decode:
            in_turn = 1 + result.num_resting / result.num_decode
            self._step_time.observe(round(in_turn * result.step_us))
        if result.num_prefill_tokens == 0:
            self._plain_step_time.observe(result.step_us)
        if result.num_decode == 0:
            self._prompt_rate.observe(result.num_prefill_tokens, result.step_us)

    def observe_transfer(self, exposed_us: int) -> None:
        """KV made a request wait so long."""
        self._transfer_time.observe(exposed_us)

    def forget_steps(self) -> None:
        """No stream is left of those whose steps these were."""
        self._step_time.forget()
        self._plain_step_time.forget()

    @property
    def step_s(self) -> float:
        """The time from token to token of a stream, whatever else is in its steps and however often it rests;
        0 where none runs."""
        return self._step_time.seconds

    @property
    def plain_step_us(self) -> int:
        """The time of a step with streams alone; 0 where none runs."""
        return round(self._plain_step_time.seconds * 1e6)

    @property
    def transfer_us(self) -> int:
        return round(self._transfer_time.seconds * 1e6)

    @property
    def prompt_tokens_per_s(self) -> float:
        """0 until a prompt was computed here."""
        return self._prompt_rate.tokens_per_s
