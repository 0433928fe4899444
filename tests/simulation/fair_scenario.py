"""The scenario of the drill `fairness` in a simulated world: light tenants alone, and beside a heavy one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.simulation.tenant_load import (
    SLOTS,
    Load,
    Shape,
    Traffic,
    closed_loop,
    open_loop,
    run_loads,
    write_keys,
)
from tests.support.models import make_tiny_checkpoint
from tests.support.percentile import percentile

HEAVY, LIGHT = "heavy", ("light-1", "light-2", "light-3")
CLIENTS = (HEAVY, *LIGHT)
EVERYBODY = "everybody"
LIGHT_SHARE = 0.1
HEAVY_LENGTHS = (0.4, 0.8, 1.2, 1.6)
"""Times the length of a light tenant's answers: slots that are taken together are not free together then."""
EQUAL_CLIENTS = (SLOTS // 2, SLOTS, 2 * SLOTS, 3 * SLOTS)


@dataclass(frozen=True, slots=True)
class Scenario:
    """`output_tokens` of a light tenant's answer; `capacity_per_s`: how many requests of that length the
    fleet ends a second, 0: that is measured first; `patience_s`: how long anybody waits for a first token."""

    seconds: float = 20.0
    output_tokens: int = 60
    heavy_times: float = 50.0
    light_share: float = LIGHT_SHARE
    capacity_per_s: float = 0.0
    patience_s: float = 2.0


@dataclass(slots=True)
class Outcome:
    """Of all seeds: the calls of light tenants, and the tokens of everybody a second."""

    light: list[Traffic]
    tokens_per_s: float

    def ttft_ms(self, share: float) -> float:
        return percentile([ms for each in self.light for ms in each.ttfts_ms()], share)

    @property
    def unserved(self) -> float:
        sent = sum(len(each.calls) for each in self.light)
        return 1 - sum(len(each.finished()) for each in self.light) / sent

    def phase_ms(self, phase: str, share: float) -> float:
        calls = [call for each in self.light for call in each.finished()]
        return percentile([call.phases_ms().get(phase, 0.0) for call in calls], share)

    def phases(self) -> list[str]:
        calls = [call for each in self.light for call in each.finished()]
        return list(dict.fromkeys(name for call in calls for name in call.phases_ms()))


class Fairness:
    """The scenario on a model, whose keys are written beside it."""

    def __init__(self, folder: Path, scenario: Scenario, seeds: Sequence[int]) -> None:
        self._model = folder / "tiny"
        make_tiny_checkpoint(self._model)
        self._scenario = scenario
        self._seeds = seeds
        self._fair, self._in_order = folder / "fair.toml", folder / "in-order.toml"
        write_keys(self._fair, {client: client for client in CLIENTS})
        write_keys(self._in_order, dict.fromkeys(CLIENTS, EVERYBODY))
        self.capacity_per_s = scenario.capacity_per_s or self._measure_capacity()

    def alone(self) -> Outcome:
        return self._beside(self._fair, heavy=False)

    def fair(self) -> Outcome:
        return self._beside(self._fair, heavy=True)

    def in_order(self) -> Outcome:
        return self._beside(self._in_order, heavy=True)

    def equal_tokens(self) -> list[int]:
        """Return the tokens of four saturated tenants, each with another number of clients."""
        scenario = self._scenario
        loads = {
            client: closed_loop(Shape(scenario.output_tokens), clients, scenario.seconds, number)
            for number, (client, clients) in enumerate(zip(CLIENTS, EQUAL_CLIENTS, strict=True))
        }
        traffic = run_loads(self._seeds[0], self._model, self._fair, loads)
        return [traffic[client].tokens(scenario.seconds) for client in CLIENTS]

    def _measure_capacity(self) -> float:
        """Return the requests a second of patient clients, twice as many as there are slots."""
        load = closed_loop(Shape(self._scenario.output_tokens), 2 * SLOTS, self._scenario.seconds / 4, 9)
        traffic = run_loads(self._seeds[0], self._model, self._fair, {HEAVY: load})[HEAVY]
        return len(traffic.finished()) / traffic.seconds

    def _beside(self, keys: Path, *, heavy: bool) -> Outcome:
        light: list[Traffic] = []
        tokens = seconds = 0.0
        for seed in self._seeds:
            traffic = run_loads(seed, self._model, keys, self._loads(seed, heavy=heavy))
            light += [traffic[client] for client in LIGHT]
            tokens += sum(each.tokens() for each in traffic.values())
            seconds += max(each.seconds for each in traffic.values())
        return Outcome(light, tokens / seconds)

    def _loads(self, seed: int, *, heavy: bool) -> Mapping[str, Load]:
        scenario = self._scenario
        rate = scenario.light_share * self.capacity_per_s
        loads = {
            client: open_loop(
                [Shape(scenario.output_tokens, scenario.patience_s)],
                rate,
                scenario.seconds,
                10 * seed + place,
            )
            for place, client in enumerate(LIGHT)
        }
        if heavy:
            shapes = [
                Shape(round(times * scenario.output_tokens), scenario.patience_s) for times in HEAVY_LENGTHS
            ]
            loads[HEAVY] = open_loop(shapes, scenario.heavy_times * rate, scenario.seconds, 10 * seed + 9)
        return loads
