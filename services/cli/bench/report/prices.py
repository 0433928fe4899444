"""Compute what a load cost, from prices in a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from services.cli.bench.run.call_record import CallRecord
from shared.errors import InvalidRequest

MAX_PRICES_BYTES = 1 << 16
"""The largest file of prices."""
FIELDS = ("input_per_million", "cached_input_per_million", "output_per_million", "machine_per_hour")


@dataclass(frozen=True, slots=True)
class Cost:
    """`per_million_tokens`: of prompts and answers together."""

    total: float
    per_request: float
    per_million_tokens: float
    per_million_output_tokens: float
    currency: str

    def as_json(self) -> dict[str, float | str]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a million tokens each, and of the machine's hour; what costs nothing is 0."""

    input_per_million: float = 0.0
    cached_input_per_million: float = 0.0
    output_per_million: float = 0.0
    machine_per_hour: float = 0.0
    currency: str = ""

    @classmethod
    def of(cls, path: Path) -> Self:
        """Raises InvalidRequest, which names the field."""
        try:
            with path.open("rb") as file:
                data = file.read(MAX_PRICES_BYTES + 1)
            if len(data) > MAX_PRICES_BYTES:
                raise InvalidRequest(f"the prices {path} are larger than {MAX_PRICES_BYTES} bytes")
            read = tomllib.loads(data.decode())
        except OSError as error:
            raise InvalidRequest(f"the prices {path} cannot be read ({error.strerror})") from error
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"the prices {path} are no TOML ({error})") from error
        for name, value in read.items():
            if name == "currency":
                if not isinstance(value, str):
                    raise InvalidRequest(f"{path}: currency is {value!r}; it is a text as EUR")
            elif name not in FIELDS:
                raise InvalidRequest(f"{path}: there is no price {name!r}; there are {', '.join(FIELDS)}")
            elif isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
                raise InvalidRequest(f"{path}: {name} is {value!r}; it is a number of 0 or more")
        if not any(read.get(name) for name in FIELDS):
            raise InvalidRequest(f"{path} has no price; write one of {', '.join(FIELDS)}")
        return cls(**read)

    def cost_of(self, records: Sequence[CallRecord], seconds: float) -> Cost:
        """Return the cost of calls that a machine was there for so long for."""
        prompt = sum(max(0, record.facts.prompt_tokens) for record in records)
        cached = sum(max(0, record.facts.cached_tokens) for record in records)
        output = sum(record.output_tokens for record in records)
        total = (
            (prompt - cached) * self.input_per_million / 1e6
            + cached * self.cached_input_per_million / 1e6
            + output * self.output_per_million / 1e6
            + seconds * self.machine_per_hour / 3600
        )
        finished = sum(record.finished for record in records)
        return Cost(
            total,
            total / max(1, finished),
            total / max(1, prompt + output) * 1e6,
            total / max(1, output) * 1e6,
            self.currency,
        )
