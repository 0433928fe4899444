"""What the swarm looks at, one by one: tenants, keys, disks, and answers over HTTP."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protos.penstock.v1 import inference_pb2 as pb
from shared.errors import InvalidRequest
from shared.files.api_key_file import parse_api_keys
from tests.simulation.edges.http_client import HttpAnswer
from tests.simulation.fleet import GATEWAY
from tests.simulation.swarm.asks import ASKS
from tests.simulation.swarm.callers import HttpCaller
from tests.simulation.swarm.client import gravity
from tests.simulation.swarm.full_disk import DiskFile
from tests.simulation.swarm.keys import KEYS, KeyFile
from tests.simulation.swarm.plan import Edge, FaultKind, Plan, PlannedCall, PlannedFault, PlannedNode
from tests.simulation.swarm.reader import Reader, Response
from tests.simulation.swarm.record import Record
from tests.simulation.swarm.tenancy import SECRET, Tenancy
from tests.simulation.world import World

TWO_CHOICES = next(number for number, ask in enumerate(ASKS) if ask.n == 2)


@pytest.fixture
def record() -> Iterator[Record]:
    with World(1) as world:
        yield Record(world, "/nowhere")


def rules(record: Record) -> list[str]:
    return [one.rule for one in record.broken]


def call(key: str, ask: int = 0, number: int = 0, edge: Edge = Edge.GRPC) -> PlannedCall:
    return PlannedCall(number, 0.0, ask, key=key, edge=edge)


# ---- tenants ------------------------------------------------------------------------------------------


def test_passages_of_another_tenant_are_noticed(record: Record) -> None:
    tenancy = Tenancy(record)
    tenancy.check_passages(call("acme"), [f"The {SECRET} is"])
    assert rules(record) == []
    tenancy.check_passages(call("metered"), [f"The {SECRET} is"])
    assert rules(record) == ["no passage across tenants"]


def test_an_answer_that_another_tenant_was_given_is_noticed(record: Record) -> None:
    tenancy = Tenancy(record)
    tenancy.admitted(call("globex"), "gateway-0.1")
    tenancy.check_earlier_answer(call("metered"), "gateway-0.1")
    assert rules(record) == []
    tenancy.check_earlier_answer(call("acme"), "gateway-0.1")
    assert rules(record) == ["no answer across tenants"]


def test_kv_that_only_another_tenant_can_have_computed_is_noticed(record: Record) -> None:
    shared, same = (
        next(n for n, ask in enumerate(ASKS) if ask.what == what)
        for what in ("a shared beginning", "another end to it")
    )
    tenancy, own = Tenancy(record), call("acme", shared, 1)
    for one in (own, call("globex", same, 2)):
        tenancy.begin(one)
    tenancy.check_cached(own, 0)
    assert rules(record) == []
    tenancy.check_cached(own, 48)
    assert rules(record) == ["no KV across tenants"]
    tenancy.begin(call("acme", same, 3))
    tenancy.check_cached(own, 48)
    assert len(record.broken) == 1


def test_a_key_that_is_let_in_too_often_is_noticed(record: Record) -> None:
    tenancy, limit = Tenancy(record), KEYS["metered"].requests_per_min
    for number in range(limit + 1):
        tenancy.admitted(call("metered"), f"gateway-0.{number}")
    tenancy.admitted(call("metered"), "gateway-0.0")
    excused = PlannedFault(0.0, FaultKind.CRASH, GATEWAY, 1.0)
    tenancy.check_limits(Plan(1, (), (), (excused,), keyed=True))
    assert rules(record) == []
    tenancy.check_limits(Plan(1, (), (), (), keyed=True))
    assert rules(record) == ["limits of keys hold"]


# ---- keys and disks -----------------------------------------------------------------------------------


def test_a_file_of_keys_changes_and_can_be_spoilt(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.toml")

    def names() -> list[str]:
        return [key.name for key in parse_api_keys(keys.path.read_text(), keys.path)]

    assert names() == list(KEYS)
    keys.take_out("globex", 3.0)
    assert (names(), keys.out_since_s) == (["acme", "metered"], {"globex": 3.0})
    keys.spoil()
    with pytest.raises(InvalidRequest):
        names()
    keys.put_right()
    keys.put_back("globex")
    assert (names(), keys.out_since_s) == (list(KEYS), {})


def test_a_full_disk_takes_half_of_a_write(tmp_path: Path) -> None:
    full: list[bool] = []
    with DiskFile(lambda: bool(full), buffering=0, dir=tmp_path) as file:
        assert file.write(memoryview(b"abcd")) == 4
        full.append(True)
        with pytest.raises(OSError, match="space") as refused:
            file.write(memoryview(b"efgh"))
        assert refused.value.errno == errno.ENOSPC
        file.seek(0)
        room = bytearray(8)
        assert file.readinto(memoryview(room)) == 6
        assert bytes(room[:6]) == b"abcdef"


# ---- over HTTP ----------------------------------------------------------------------------------------


def http_caller(record: Record, number: int, edge: Edge, texts: list[str]) -> tuple[HttpCaller, list[Reader]]:
    expected = [Response(ids=[1, 2], text=text, finish=pb.FINISH_REASON_LENGTH) for text in texts]
    readers = [Reader(record, f"client-{at}", one) for at, one in enumerate(expected)]
    return HttpCaller(record, call("acme", number, edge=edge), "psk", readers), readers


def chunk(index: int, text: str, finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": index, "text": text, "finish_reason": finish}]}


def hear(caller: HttpCaller, *events: dict[str, Any], marks: int = 1) -> None:
    answer = HttpAnswer(status=200, whole=True)
    for event in events:
        answer.events.append(event)
        caller.take(answer)
    answer.done_marks = marks
    caller.end(answer)


def test_a_stream_of_events_is_read_choice_by_choice(record: Record) -> None:
    caller, readers = http_caller(record, TWO_CHOICES, Edge.EVENTS, ["ab", "c"])
    usage = {"choices": [], "usage": {"completion_tokens": 4, "prompt_tokens": 1}}
    hear(caller, chunk(1, "c"), chunk(0, "a"), chunk(0, "b", "length"), chunk(1, "", "length"), usage)
    assert (caller.is_over, caller.ends) == (True, ["finished", "finished"])
    assert [reader.got.text for reader in readers] == ["ab", "c"]
    assert rules(record) == []


@pytest.mark.parametrize(
    ("events", "marks", "rule"),
    [
        ((chunk(0, "ax"),), 1, "the same text as undisturbed"),
        ((chunk(0, "ab", "length"), chunk(0, "b")), 1, "nothing after the end"),
        ((chunk(0, "ab", "length"), chunk(0, "", "length")), 1, "one terminal event"),
        ((chunk(0, "ab", "length"),), 2, "one terminal event"),
        ((chunk(0, "ab", "length"),), 0, "one terminal event"),
        ((chunk(0, "a", "length"),), 1, "the same text as undisturbed"),
        ((chunk(0, "ab", "stop"),), 1, "the same end as undisturbed"),
        ((chunk(0, "ab", "length"), {"usage": {"completion_tokens": 3}}), 1, "usage is what came"),
    ],
)
def test_a_stream_of_events_that_is_wrong_is_noticed(
    record: Record, events: tuple[dict[str, Any], ...], marks: int, rule: str
) -> None:
    caller, _ = http_caller(record, 0, Edge.EVENTS, ["ab"])
    hear(caller, *events, marks=marks)
    assert rule in rules(record)


def test_an_error_ends_all_choices_of_a_call(record: Record) -> None:
    caller, _ = http_caller(record, TWO_CHOICES, Edge.HTTP, ["a", "b"])
    caller.end(
        HttpAnswer(status=429, body=json.dumps({"error": {"code": "overloaded"}}).encode(), whole=True)
    )
    assert (caller.is_over, caller.ends, caller.is_refused) == (True, ["shed", "shed"], False)


# ---- what little breaks -------------------------------------------------------------------------------

SEVERAL = tuple(PlannedNode(name, 0.0, 0) for name in ("decode-0", "decode-1", "prefill-0"))


def plan_with(*faults: PlannedFault) -> Plan:
    return Plan(1, SEVERAL, (), faults)


def test_one_loss_alone_is_told_from_more() -> None:
    loss = PlannedFault(0.0, FaultKind.LOST, "nats", 2.0, 0, "KvDone")
    assert plan_with(loss).loses_once
    assert not plan_with().loses_once
    assert not plan_with(loss, loss).loses_once
    assert not replace(plan_with(loss), max_sequences=2).loses_once


@pytest.mark.parametrize(
    ("node", "kind", "began_s", "ended_s", "knows"),
    [
        ("decode-0", FaultKind.PAUSE, 2.5, 6.9, True),
        ("decode-0", FaultKind.PAUSE, 2.4, 6.9, False),
        ("decode-0", FaultKind.PAUSE, 2.5, 7.1, False),
        ("prefill-0", FaultKind.PAUSE, 2.5, 6.9, False),
        ("decode-0", FaultKind.CRASH, 2.5, 6.9, False),
    ],
)
def test_a_silence_is_known_after_a_while_until_it_ends(
    node: str, kind: FaultKind, began_s: float, ended_s: float, *, knows: bool
) -> None:
    plan = plan_with(PlannedFault(1.0, kind, node, 6.0))
    assert plan.knows_silence(began_s, ended_s) is knows


def test_of_several_choices_the_one_counts_over_which_the_others_were_given_up() -> None:
    assert min(["finished", "cancelled", "expired"], key=gravity) == "expired"
    assert min(["finished", "cancelled"], key=gravity) == "cancelled"
    assert min(["finished", "finished"], key=gravity) == "finished"
