"""Fairness: one tenant with five times what the stack can do beside three that want a tenth each.

Everything is done twice in one run, since the machine is shared: with a tenant for each, and with the same
clients as one tenant, which is served in order of arrival.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from protos.penstock.v1 import inference_pb2_grpc as rpc
from shared.files.api_key_file import ApiKey, describe_api_key, hash_api_key, new_api_key
from tests.chaos.core_time import CoreTime
from tests.chaos.ends import Ends
from tests.chaos.first_token_parts import SLOWEST_SHARE, Parts, excess_ms, first_token_parts, parts_table
from tests.chaos.load import Load, Metadata, Shape, closed_loop, narrow_channel, open_loop
from tests.chaos.own_process import OwnProcess, own_process
from tests.chaos.report import DrillReport, spread
from tests.chaos.world import SLOTS, Models, drill_stack
from tests.support.percentile import percentile
from tests.support.stack import Stack

HEAVY, LIGHT = "heavy", ("light-1", "light-2", "light-3")
EVERYBODY = "everybody"
"""The tenant of all clients where they are served in order of arrival."""
LIGHT_SHARE = 0.1
HEAVY_TIMES = 50.0
"""Times what a light tenant sends."""
FLOOD_TIMES = 3.0
"""Times what patient clients get: what the stack can do is measured under a load that is too much for it."""
TTFT_LIMIT = 1.3
LINE_LIMIT_MS = 10.0
JAIN_LIMIT = 0.95
UNSERVED_LIMIT = 0.01
THROUGHPUT_LIMIT = 0.97
DEADLINE_MS = 60_000
TTFT_MS = 2_000
"""The line is as long as this lets it be; what is behind that is shed. It is the same for all: within a
tenant the earliest deadline goes first, which is then the order of arrival."""
HEAVY_LENGTHS = (0.4, 0.8, 1.2, 1.6)
"""Times the length of a light tenant's answers."""
FIRST_TOKEN_ROLES = ("gateway", "tokenizer", "prefill", "detokenizer")
"""The roles on the way to a first token."""
EQUAL_CLIENTS = (SLOTS // 2, SLOTS, 2 * SLOTS, 3 * SLOTS)
"""The clients of saturated tenants: each has as many as its part of the slots and a line, however long."""


@dataclass(frozen=True, slots=True)
class Scale:
    best_s: float
    load_s: float
    rounds: int
    equal_s: float
    output_tokens: int


FULL = Scale(best_s=8.0, load_s=12.0, rounds=3, equal_s=20.0, output_tokens=250)
SHORT = Scale(best_s=0.3, load_s=0.5, rounds=1, equal_s=0.5, output_tokens=20)
ONE_OF_EACH = ("--prefill", "1", "--decode", "1", "--detokenizer", "1", "--tokenizer", "1")
"""The workers of a short drill, of which half of SLOTS is left: to whom a request goes is no matter here."""


class Clients:
    """A key for each client as a tenant of its own, and one as a client of the tenant of all."""

    def __init__(self, file: Path) -> None:
        self._secrets = {
            (client, alone): new_api_key() for client in (HEAVY, *LIGHT) for alone in (False, True)
        }
        keys = [
            ApiKey(f"{client}-{alone:d}", client if alone else EVERYBODY, hash_api_key(secret))
            for (client, alone), secret in self._secrets.items()
        ]
        file.write_text("\n".join(map(describe_api_key, keys)))

    def metadata(self, client: str, *, fair: bool) -> Metadata:
        return (("authorization", f"Bearer {self._secrets[client, fair]}"),)


class FairnessDrill:
    def __init__(self, stack: Stack, clients: Clients, scale: Scale, report: DrillReport) -> None:
        self._stack = stack
        self._clients = clients
        self._scale = scale
        self._report = report
        self._first_token_time = {heavy: CoreTime() for heavy in (False, True)}  # by whether it was there
        self._core_time = {(heavy, fair): CoreTime() for heavy in (False, True) for fair in (False, True)}
        self._patient = Shape(scale.output_tokens, DEADLINE_MS)
        self._light = Shape(scale.output_tokens, DEADLINE_MS, TTFT_MS)
        self._heavy = [  # of several lengths: slots that are taken together are not free together then
            Shape(round(times * scale.output_tokens), DEADLINE_MS, TTFT_MS) for times in HEAVY_LENGTHS
        ]

    async def hold_all(self) -> None:
        async with narrow_channel(self._stack.grpc) as stub, own_process(self._stack.grpc) as heavy:
            everybody = self._clients.metadata(HEAVY, fair=False)
            best = await closed_loop(stub, self._patient, 2 * SLOTS, self._scale.best_s, metadata=everybody)
            rate = len(best.ended("finished")) / best.seconds
            alone, in_order, fair = [], [], []
            for number in range(self._scale.rounds):
                # Clients take CPU, those that are shed too: what the stack can do is measured beside them.
                flood = await open_loop(
                    stub, self._heavy, FLOOD_TIMES * rate, self._scale.best_s, metadata=everybody
                )
                rate = min(rate, len(flood.ended("finished")) / flood.seconds)
                alone.append(await self._beside(stub, rate, number, None, fair=True))
                in_order.append(await self._beside(stub, rate, number, heavy, fair=False))
                fair.append(await self._beside(stub, rate, number, heavy, fair=True))
            for name, loads in (("alone", alone), ("in order of arrival", in_order), ("fair", fair)):
                self._tell(name, loads)
            self._claim(alone, in_order, fair)
            self._take_apart(alone, fair)
            await self._equals(stub)
        await self._stack.until_idle()

    async def _beside(
        self, stub: rpc.InferenceStub, rate: float, number: int, heavy: OwnProcess | None, *, fair: bool
    ) -> dict[str, Load]:
        """One round: the loads by client."""
        everybody = [row.pid for row in self._stack.instances()]
        first_token = [row.pid for row in self._stack.instances() if row.role in FIRST_TOKEN_ROLES]
        began, began_first = CoreTime.of(everybody), CoreTime.of(first_token)
        light_rate = LIGHT_SHARE * rate
        loads = {
            client: open_loop(
                stub,
                [self._light],
                light_rate,
                self._scale.load_s,
                metadata=self._clients.metadata(client, fair=fair),
                seed=10 * number + place,
            )
            for place, client in enumerate(LIGHT)
        }
        if heavy is not None:
            loads[HEAVY] = heavy.open_loop(
                self._heavy,
                HEAVY_TIMES * light_rate,
                self._scale.load_s,
                metadata=self._clients.metadata(HEAVY, fair=fair),
                seed=10 * number + 9,
            )
        done = dict(zip(loads, await asyncio.gather(*loads.values()), strict=True))
        self._core_time[heavy is not None, fair] += CoreTime.of(everybody) - began
        if fair:
            self._first_token_time[heavy is not None] += CoreTime.of(first_token) - began_first
        return done

    async def _equals(self, stub: rpc.InferenceStub) -> None:
        """Tenants of equal weight that always have a line, each of another length."""
        loads = await asyncio.gather(
            *(
                closed_loop(
                    stub,
                    self._patient,
                    clients,
                    self._scale.equal_s,
                    metadata=self._clients.metadata(client, fair=True),
                )
                for client, clients in zip((HEAVY, *LIGHT), EQUAL_CLIENTS, strict=True)
            )
        )
        # What ends later are the lines that were left, each as long as its tenant has clients.
        within_s = self._scale.equal_s
        tokens = [
            sum(len(call.answer.ids) for call in load.ended("finished") if call.ended_s <= within_s)
            for load in loads
        ]
        self._report.add("equals", *Ends.of(loads, TTFT_MS).cells, f"{sum(tokens) / within_s:.0f}", "-", "-")
        lost = sum(len(load.calls) - len(load.ended("finished")) for load in loads)
        self._report.claim("saturated tenants lose no request", f"{lost} were not served", holds=not lost)
        index = jain(tokens)
        self._report.claim(
            f"Jain's index of {len(loads)} saturated tenants at least {JAIN_LIMIT}",
            f"{index:.3f}: {tokens} tokens for {EQUAL_CLIENTS} clients",
            holds=index >= JAIN_LIMIT,
            timed=True,
        )

    def _tell(self, name: str, rounds: list[dict[str, Load]]) -> None:
        loads = [load for loads in rounds for load in loads.values()]
        heavy = [loads[HEAVY] for loads in rounds if HEAVY in loads]
        self._report.add(
            name,
            *Ends.of(loads, TTFT_MS).cells,
            f"{_goodput(rounds):.0f}",
            spread(_light_ttfts(rounds)),
            spread(_ttfts(heavy)),
        )

    def _claim(
        self, alone: list[dict[str, Load]], in_order: list[dict[str, Load]], fair: list[dict[str, Load]]
    ) -> None:
        unserved, unserved_in_order = (_light_unserved(rounds) for rounds in (fair, in_order))
        self._report.claim(
            "light tenants are served",
            f"{unserved:.1%} were not, in order of arrival {unserved_in_order:.1%}",
            holds=unserved <= UNSERVED_LIMIT,
            timed=True,
        )
        ends = Ends.of(
            [load for rounds in (alone, in_order, fair) for each in rounds for load in each.values()],
            TTFT_MS,
        )
        self._report.claim(
            "who is not served is shed, or has expired after waiting for as long as it had",
            f"{ends.shed} shed, {ends.expired} expired, {ends.other} otherwise{ends.hops}",
            holds=not ends.other,
            timed=True,
        )
        alone_ms, in_order_ms, fair_ms = (
            percentile(_light_ttfts(rounds), 0.99) for rounds in (alone, in_order, fair)
        )
        self._report.claim(
            f"TTFT p99 of light tenants at most {TTFT_LIMIT} times that of alone",
            f"{fair_ms / alone_ms:.2f}, in order of arrival {in_order_ms / alone_ms:.2f}",
            holds=fair_ms <= TTFT_LIMIT * alone_ms,
            timed=True,
        )
        line_ms = percentile([parts.get("line", 0.0) for parts in _light_parts(fair)], 0.99)
        self._report.claim(
            f"of light tenants' first tokens 99% wait at most {LINE_LIMIT_MS:.0f} ms for a slot",
            f"{line_ms:.1f} ms",
            holds=line_ms <= LINE_LIMIT_MS,
            timed=True,
        )
        ratio = _goodput(fair) / _goodput(in_order)
        self._report.claim(
            f"tokens/s at least {THROUGHPUT_LIMIT:.0%} of those in order of arrival",
            f"{ratio:.1%}, {self._tokens_per_core_s(fair, fair=True):.0f} a core-second and "
            f"{self._tokens_per_core_s(in_order, fair=False):.0f}",
            holds=ratio >= THROUGHPUT_LIMIT,
            timed=True,
        )

    def _tokens_per_core_s(self, rounds: list[dict[str, Load]], *, fair: bool) -> float:
        """What the stack got out of the cores beside the heavy tenant, however few others have left it."""
        tokens = sum(load.goodput * load.seconds for loads in rounds for load in loads.values())
        return tokens / self._core_time[True, fair].ran_s

    def _take_apart(self, alone: list[dict[str, Load]], fair: list[dict[str, Load]]) -> None:
        """Tell where the time to light tenants' first tokens goes, and what is waiting for cores."""
        parts_alone, parts_fair = _light_parts(alone), _light_parts(fair)
        rows = parts_table(parts_alone, parts_fair)
        for name, share in (("all", 1.0), (f"the slowest {SLOWEST_SHARE:.0%}", SLOWEST_SHARE)):
            excess, queued = excess_ms(parts_alone, parts_fair, share)
            share_queued = f"{queued / excess:.0%}" if excess > 0 else "-"
            rows.append(
                (f"excess, mean of {name}", "", f"{excess:.1f}, in lines {queued:.1f} ({share_queued})")
            )
        rows.append(("token to token behind it", spread(_light_itls(alone)), spread(_light_itls(fair))))
        waits = [f"{self._first_token_time[heavy].waits_per_run:.2f}" for heavy in (False, True)]
        rows.append(("wait for a core per second of running", *waits))
        self._report.details.append((PARTS_HEAD, rows))


def jain(values: list[int]) -> float:
    """1 where all are equal, one in n where one of n has everything."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else 0.0


def _goodput(rounds: list[dict[str, Load]]) -> float:
    tokens = sum(load.goodput * load.seconds for loads in rounds for load in loads.values())
    return tokens / sum(max(load.seconds for load in loads.values()) for loads in rounds)


def _light_unserved(rounds: list[dict[str, Load]]) -> float:
    loads = [load for loads in rounds for name, load in loads.items() if name != HEAVY]
    sent = sum(len(load.calls) for load in loads)
    return 1 - sum(len(load.ended("finished")) for load in loads) / max(1, sent)


def _light_ttfts(rounds: list[dict[str, Load]]) -> list[float]:
    return _ttfts([load for loads in rounds for name, load in loads.items() if name != HEAVY])


def _light_parts(rounds: list[dict[str, Load]]) -> list[Parts]:
    loads = [load for loads in rounds for name, load in loads.items() if name != HEAVY]
    return [first_token_parts(call.answer) for load in loads for call in load.ended("finished")]


def _light_itls(rounds: list[dict[str, Load]]) -> list[float]:
    """The mean time from token to token of each stream."""
    answers = [
        call.answer
        for loads in rounds
        for name, load in loads.items()
        if name != HEAVY
        for call in load.ended("finished")
    ]
    return [(a.total_us - a.ttft_us) / 1e3 / (len(a.ids) - 1) for a in answers if len(a.ids) > 1]


def _ttfts(loads: list[Load]) -> list[float]:
    return [call.answer.ttft_us / 1e3 for load in loads for call in load.ended("finished")]


HEAD = (
    *("load", "sent", "finished", "shed", "expired", "other", "tokens/s"),
    *("TTFT of light p50 / p99 / max", "of heavy"),
)


PARTS_HEAD = ("first token of light tenants: phase", "alone p50 / p99 ms", "beside the heavy one")


def new_report() -> DrillReport:
    return DrillReport("fairness: a tenant with fifty times the load of each of three others", HEAD)


async def hold(models: Models, scale: Scale = FULL) -> DrillReport:
    report = new_report()
    file = models.target.parent / "keys.toml"
    clients = Clients(file)
    workers = ONE_OF_EACH if scale is SHORT else ()
    with drill_stack(models, *workers, environ={"PENSTOCK_GATEWAY_API_KEYS": str(file)}) as stack:
        await FairnessDrill(stack, clients, scale, report).hold_all()
    return report
