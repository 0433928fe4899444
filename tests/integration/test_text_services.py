"""The tokenizer and the detokenizer as real processes on a real nats-server."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import nats
import pytest
import pytest_asyncio

from shared.bus import Bus, Delivery, codec
from shared.bus.fleet import FleetView
from shared.bus.heartbeats.publisher import HeartbeatPublisher
from shared.bus.nats_server import NatsServer
from shared.bus.subjects import CANCEL_ALL, NOBODY, inbox, subject_of
from shared.deadline import Deadline
from shared.errors import (
    Cancelled,
    DeadlineExpired,
    InvalidRequest,
    PenstockError,
    TooLarge,
    Unavailable,
    UnknownMessage,
)
from shared.messages import (
    Accepted,
    AuditReport,
    AuditRequest,
    Cancel,
    CancelAck,
    Detokenize,
    Detokenized,
    Envelope,
    Failure,
    Heartbeat,
    Lost,
    Message,
    Open,
    Text,
    Tokenize,
    Tokenized,
    Tokens,
    Warm,
    pack_ids,
    unpack_hashes,
    unpack_ids,
)
from shared.text.tokenizer import TextTokenizer
from tests.support.block_hashes import hashes_of
from tests.support.data import data_dir
from tests.support.forked import ForkedProcess, start_forked
from tests.support.tokenizer_kinds import SAMPLES, library_tokenizer
from tests.support.wait import until

pytestmark = pytest.mark.asyncio(loop_scope="module")

DETOKENIZER = inbox("detokenizer", "detokenizer-0")
TOKENIZER = inbox("tokenizer", "tokenizer-0")
PATIENCE_S = 30.0
"""The longest wait for answers that must come; a loaded machine may take long."""
MAX_TEXT_BYTES = 600_000
NUMBERS = itertools.count()
EMPTY = Envelope()


def start_service(
    role: str, model: Path, nats_url: str, log: Path = Path(os.devnull), **environment: str
) -> ForkedProcess:
    own = {"PENSTOCK_NATS_URL": nats_url, "PENSTOCK_MODEL": str(model), "PENSTOCK_INSTANCE": f"{role}-0"}
    return start_forked(f"services.{role}", {**os.environ, **own, **environment}, log)


async def exit_code(process: ForkedProcess) -> int:
    return await asyncio.to_thread(process.wait, PATIENCE_S)


async def answers(bus: Bus, subject: str) -> bool:
    try:
        await bus.ask(subject, AuditRequest(), Envelope(), Deadline.after(1.0))
    except (Unavailable, DeadlineExpired):
        return False
    return True


@dataclass
class Gateway:
    """What a gateway does with the two services, by hand. `instance` is its own in every test."""

    bus: Bus
    tokenizer: TextTokenizer
    instance: str
    received: list[Delivery] = field(default_factory=list)

    def request(self) -> str:
        return f"{self.instance}.{next(NUMBERS):012x}"

    def envelope(self, request_id: str, epoch: int = 1, deadline: Deadline | None = None) -> Envelope:
        return self.bus.envelope(request_id, epoch, deadline, origin=self.instance)

    async def ask(self, subject: str, message: Message, envelope: Envelope = EMPTY) -> Message:
        return await self.bus.ask(subject, message, envelope, Deadline.after(PATIENCE_S))

    async def open(self, *, tail: list[int] | None = None, stop: tuple[str, ...] = (), at: int = 0) -> str:
        request_id = self.request()
        opened = Open(self.instance, pack_ids(tail or []), b"", 0, at, stop)
        assert await self.ask(DETOKENIZER, opened, self.envelope(request_id)) == Accepted()
        return request_id

    async def send(self, request_id: str, ids: list[int], at: int, finish: str = "") -> None:
        row = Tokens((request_id,), (1,), (at,), (tuple(ids),), (finish,), ((),), ((),))
        await self.bus.publish(DETOKENIZER, row)

    def texts(self) -> list[Text]:
        return [delivery.message for delivery in self.received if isinstance(delivery.message, Text)]

    def text_of(self, request_id: str) -> str:
        rows = [row for text in self.texts() for row in zip(text.request_ids, text.texts, strict=True)]
        return "".join(text for of, text in rows if of == request_id)

    def finish_of(self, request_id: str) -> str:
        rows = [row for text in self.texts() for row in zip(text.request_ids, text.finish, strict=True)]
        return "".join(finish for of, finish in rows if of == request_id)

    def lost_code(self, request_id: str) -> str:
        codes = [
            d.message.code
            for d in self.received
            if isinstance(d.message, Lost) and d.envelope.request_id == request_id
        ]
        assert len(codes) <= 1
        return "".join(codes)

    async def nothing_held(self) -> bool:
        report = await self.ask(DETOKENIZER, AuditRequest())
        assert isinstance(report, AuditReport)
        return report.held == ()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = data_dir()
    if data is not None:
        return data / "stories260k"
    folder = tmp_path_factory.mktemp("model")
    library_tokenizer("byte_fallback").save(str(folder / "tokenizer.json"))
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def url(model: Path) -> AsyncIterator[str]:
    """Both services, up for all tests of this module; they end with exit code 0."""
    server = NatsServer()
    await server.start()
    limit = str(MAX_TEXT_BYTES)
    processes = [
        start_service("detokenizer", model, server.url),
        start_service("tokenizer", model, server.url, PENSTOCK_TOKENIZER_MAX_TEXT_BYTES=limit),
    ]
    bus = await Bus.connect(server.url, name="test-start")
    for subject in (DETOKENIZER, TOKENIZER):
        await until(partial(answers, bus, subject), PATIENCE_S)
    await bus.close()
    yield server.url
    for process in processes:
        process.send_signal(signal.SIGTERM)
    codes = [await exit_code(process) for process in processes]
    await server.stop()
    assert codes == [0, 0]


@pytest_asyncio.fixture(loop_scope="module")
async def gateway(url: str, model: Path) -> AsyncIterator[Gateway]:
    """Every test must leave nothing held behind."""
    bus = await Bus.connect(url, name="test")
    gateway = Gateway(bus, TextTokenizer.load(model), f"gateway-{next(NUMBERS)}")
    await bus.serve(inbox("gateway", gateway.instance), gateway.received.append)
    yield gateway
    await until(gateway.nothing_held, PATIENCE_S)
    await bus.close()


# ---- detokenizer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("text", SAMPLES)
async def test_a_stream_adds_up_to_the_decode_of_all_ids(gateway: Gateway, text: str) -> None:
    ids = gateway.tokenizer.encode_text(text)
    prompt, answer = ids[:2], ids[2:]
    request_id = await gateway.open(tail=prompt, at=2)
    for at, token_id in enumerate(answer[:-1], start=2):
        await gateway.send(request_id, [token_id], at)
    await gateway.send(request_id, answer[-1:], len(ids) - 1, "length")
    await until(lambda: gateway.finish_of(request_id), PATIENCE_S)
    shown, asked = gateway.tokenizer.decode(ids), gateway.tokenizer.decode(prompt)
    asked = asked.rstrip("\ufffd")  # a character that the prompt leaves incomplete belongs to the answer
    assert shown.startswith(asked)
    assert gateway.text_of(request_id) == shown[len(asked) :]


async def test_requests_of_one_step_come_in_one_text(gateway: Gateway) -> None:
    first, second = await gateway.open(), await gateway.open()
    ids = tuple(gateway.tokenizer.encode_text("a b"))
    both = Tokens((first, second), (1, 1), (0, 0), (ids, ids), ("length", "length"), ((), ()), ((), ()))
    await gateway.bus.publish(DETOKENIZER, both)
    await until(gateway.texts, PATIENCE_S)
    (text,) = gateway.texts()
    assert text.request_ids == (first, second)
    assert text.texts == ("a b", "a b")


async def test_a_stop_string_over_several_tokens_ends_the_request(gateway: Gateway) -> None:
    ids = gateway.tokenizer.encode_text("the cat and the dog")
    request_id = await gateway.open(stop=("at an",))
    for at, token_id in enumerate(ids):
        await gateway.send(request_id, [token_id], at)
    await until(lambda: gateway.finish_of(request_id), PATIENCE_S)
    assert gateway.finish_of(request_id) == "stop_string"
    assert gateway.text_of(request_id) == "the c"


async def test_a_cancel_is_acknowledged_and_ends_the_stream(gateway: Gateway) -> None:
    request_id = await gateway.open()
    envelope = gateway.envelope(request_id)
    assert await gateway.ask(DETOKENIZER, Cancel("cancelled"), envelope) == CancelAck(True, "detokenizing")
    assert await gateway.nothing_held()
    assert await gateway.ask(DETOKENIZER, Cancel("cancelled"), envelope) == CancelAck(False, "")


async def test_a_broadcast_cancel_reaches_the_decoder(gateway: Gateway) -> None:
    request_id = await gateway.open()
    await gateway.bus.publish(CANCEL_ALL, Cancel("cancelled"), gateway.envelope(request_id))
    await until(gateway.nothing_held, PATIENCE_S)


async def test_a_cancel_before_the_open_wins(gateway: Gateway) -> None:
    envelope = gateway.envelope(gateway.request())
    await gateway.ask(DETOKENIZER, Cancel("cancelled"), envelope)
    with pytest.raises(Cancelled):
        await gateway.ask(DETOKENIZER, Open(gateway.instance, b"", b"", 0, 0, ()), envelope)


async def test_a_gap_is_reported_lost(gateway: Gateway) -> None:
    request_id = await gateway.open()
    await gateway.send(request_id, [5], 3)
    await until(lambda: gateway.lost_code(request_id), PATIENCE_S)
    assert gateway.lost_code(request_id) == "gap"


async def test_tokens_without_an_open_are_reported_lost(gateway: Gateway) -> None:
    request_id = gateway.request()
    await gateway.send(request_id, [5], 0)
    await until(lambda: gateway.lost_code(request_id), PATIENCE_S)
    assert gateway.lost_code(request_id) == "unknown"


async def test_ids_outside_the_vocabulary_lose_their_request_and_no_other(gateway: Gateway) -> None:
    broken, whole = await gateway.open(), await gateway.open()
    await gateway.send(broken, [1 << 30], 0)
    await gateway.send(whole, gateway.tokenizer.encode_text("a b"), 0, "length")
    await until(lambda: gateway.finish_of(whole), PATIENCE_S)
    assert gateway.lost_code(broken) == "protocol"
    assert gateway.text_of(whole) == "a b"


async def test_a_replay_goes_on_after_the_text_already_sent(gateway: Gateway) -> None:
    ids = gateway.tokenizer.encode_text("the cat and the dog")
    request_id = gateway.request()
    emitted = len(gateway.tokenizer.decode(ids[:4]))
    replayed = Open(gateway.instance, b"", pack_ids(ids[:4]), emitted, 4, ())
    await gateway.ask(DETOKENIZER, replayed, gateway.envelope(request_id))
    await gateway.send(request_id, ids[4:], 4, "length")
    await until(lambda: gateway.finish_of(request_id), PATIENCE_S)
    assert gateway.text_of(request_id) == "the cat and the dog"[emitted:]


async def test_an_expired_open_is_refused(gateway: Gateway) -> None:
    envelope = gateway.envelope(gateway.request(), deadline=Deadline.after(-1.0))
    with pytest.raises(DeadlineExpired, match="detokenizer"):
        await gateway.ask(DETOKENIZER, Open(gateway.instance, b"", b"", 0, 0, ()), envelope)


@pytest.mark.parametrize("subject", [DETOKENIZER, TOKENIZER])
async def test_a_message_for_somebody_else_is_refused(gateway: Gateway, subject: str) -> None:
    with pytest.raises(UnknownMessage):
        await gateway.ask(subject, Warm(b"", b"", "gateway-0"), gateway.envelope(gateway.request()))


@pytest.mark.parametrize("subject", [DETOKENIZER, TOKENIZER])
async def test_garbage_is_answered_and_nobody_dies(gateway: Gateway, url: str, subject: str) -> None:
    client = await nats.connect(url)
    garbage_subject = subject_of(subject, AuditRequest.__name__, NOBODY)
    valid = codec.encode(AuditRequest(), Envelope())
    for garbage in (b"", b"\xc1\xff", valid[:-1], valid + b"x", b"\x98" * 1000):
        answer = await client.request(garbage_subject, garbage, timeout=PATIENCE_S)
        _, failure = codec.decode(answer.data)
        assert isinstance(failure, Failure)
        assert failure.code in ("protocol", "unknown_message")
        await client.publish(garbage_subject, garbage)
    await client.close()
    assert await answers(gateway.bus, subject)


async def test_decoders_of_a_gateway_that_stops_are_given_back(gateway: Gateway) -> None:
    def status() -> Heartbeat:
        return Heartbeat("gateway", gateway.instance, 1, "ready")

    beats = HeartbeatPublisher(gateway.bus, "gateway", gateway.instance, status)
    beats.start()
    await gateway.open()
    await beats.stop()
    await until(gateway.nothing_held, PATIENCE_S)


async def test_a_draining_detokenizer_finishes_what_it_has(model: Path) -> None:
    server = NatsServer()
    await server.start()
    process = start_service("detokenizer", model, server.url)
    bus = await Bus.connect(server.url, name="test")
    own = Gateway(bus, TextTokenizer.load(model), "gateway-x")
    await bus.serve(inbox("gateway", own.instance), own.received.append)
    fleet = FleetView()
    await fleet.start(bus)
    await until(lambda: is_ready(fleet), PATIENCE_S)  # what still loads has nothing to finish
    request_id = await own.open()
    process.send_signal(signal.SIGTERM)
    await until(lambda: refused(own), PATIENCE_S)
    await own.send(request_id, own.tokenizer.encode_text("a b"), 0, "length")
    await until(lambda: own.finish_of(request_id), PATIENCE_S)
    assert own.text_of(request_id) == "a b"
    assert await exit_code(process) == 0
    await fleet.stop()
    await bus.close()
    await server.stop()


def is_ready(fleet: FleetView) -> bool:
    view = fleet.get("detokenizer", "detokenizer-0")
    return view is not None and view.heartbeat.state == "ready"


async def refused(gateway: Gateway) -> bool:
    """Whether a new request is refused; one that is taken is cancelled again."""
    envelope = gateway.envelope(gateway.request())
    try:
        await gateway.ask(DETOKENIZER, Open(gateway.instance, b"", b"", 0, 0, ()), envelope)
    except Unavailable:
        return True
    await gateway.ask(DETOKENIZER, Cancel("cancelled"), envelope)
    return False


# ---- tokenizer ------------------------------------------------------------------------------------


async def tokenized(gateway: Gateway, message: Tokenize) -> Tokenized:
    answer = await gateway.ask(TOKENIZER, message, gateway.envelope(gateway.request()))
    assert isinstance(answer, Tokenized)
    return answer


@pytest.mark.parametrize("repeat", [1, 200], ids=["short", "long"])
async def test_text_is_answered_with_ids_and_block_names(gateway: Gateway, model: Path, repeat: int) -> None:
    text = " ".join(SAMPLES * repeat)
    answer = await tokenized(gateway, Tokenize(text=text))
    ids = unpack_ids(answer.token_ids)
    assert ids == gateway.tokenizer.encode_text(text)
    assert unpack_hashes(answer.block_hashes) == hashes_of(ids)


async def test_a_long_text_does_not_hold_up_a_short_one(gateway: Gateway) -> None:
    order: list[str] = []

    async def ask(name: str, text: str) -> None:
        await tokenized(gateway, Tokenize(text=text))
        order.append(name)

    long_text = "the cat " * (200_000 // 8)
    await asyncio.gather(ask("long", long_text), ask("short", "the cat"))
    assert order == ["short", "long"]


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Tokenize(text=""), InvalidRequest),
        (Tokenize(text="a" * (MAX_TEXT_BYTES + 1)), TooLarge),
        (Tokenize(token_ids=pack_ids([1 << 30])), InvalidRequest),
        (Tokenize(), InvalidRequest),
    ],
)
async def test_a_prompt_that_cannot_be_used_is_a_typed_error(
    gateway: Gateway, message: Tokenize, error: type[PenstockError]
) -> None:
    with pytest.raises(error) as caught:
        await tokenized(gateway, message)
    assert caught.value.hop == "tokenizer"


@pytest.mark.parametrize("chars", [10, 100_000])
async def test_an_expired_prompt_is_not_started(gateway: Gateway, chars: int) -> None:
    envelope = gateway.envelope(gateway.request(), deadline=Deadline.after(-1.0))
    with pytest.raises(DeadlineExpired, match="tokenizer"):
        await gateway.ask(TOKENIZER, Tokenize(text="a" * chars), envelope)


async def test_an_idle_tokenizer_holds_nothing(gateway: Gateway) -> None:
    await tokenized(gateway, Tokenize(text="a " * 5000))
    report = await gateway.ask(TOKENIZER, AuditRequest())
    assert isinstance(report, AuditReport)
    assert report.held == ()


# ---- start --------------------------------------------------------------------------------------


async def test_a_model_that_does_not_exist_stops_the_start_with_a_sentence(url: str, tmp_path: Path) -> None:
    process = start_service("detokenizer", Path("/absent/model"), url, tmp_path / "log")
    assert await exit_code(process) == 1
    assert "there is no directory and no file '/absent/model'" in (tmp_path / "log").read_text()


async def test_a_wrong_option_stops_the_start_with_its_name(url: str, model: Path, tmp_path: Path) -> None:
    process = start_service(
        "detokenizer", model, url, tmp_path / "log", PENSTOCK_DETOKENIZER_MAX_SESSIONS="0"
    )
    assert await exit_code(process) == 2
    assert "PENSTOCK_DETOKENIZER_MAX_SESSIONS" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("text", ["a b", "the cat and the dog " * 200], ids=["at once", "in a thread"])
async def test_ids_come_back_as_their_text(gateway: Gateway, text: str) -> None:
    ids = gateway.tokenizer.encode_text(text)
    answer = await gateway.ask(TOKENIZER, Detokenize(pack_ids(ids)), gateway.envelope(gateway.request()))
    assert answer == Detokenized(gateway.tokenizer.decode(ids))


async def test_special_tokens_are_left_out_when_they_are_not_wanted(gateway: Gateway) -> None:
    found = []
    for wanted in (True, False):
        message = Tokenize(text="a b", add_special_tokens=wanted)
        answer = await gateway.ask(TOKENIZER, message, gateway.envelope(gateway.request()))
        assert isinstance(answer, Tokenized)
        found.append(unpack_ids(answer.token_ids))
    plain = gateway.tokenizer.encode_text("a b", add_special_tokens=False)
    assert found == [gateway.tokenizer.encode_text("a b"), plain]
