"""Who may say and hear what on a closed bus, on a real nats-server and in memory."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from shared.bus import Bus, Delivery
from shared.bus.connection import Connection
from shared.bus.credentials import Credentials
from shared.bus.permissions import BusUser, operator_user, role_user
from shared.bus.subjects import answers, inbox
from shared.deadline import Deadline
from shared.errors import Unavailable
from shared.messages import AuditReport, AuditRequest, Cancel, Envelope, Tokenize, Tokenized
from tests.simulation.bus import ServerSettings
from tests.simulation.buses import EitherBus
from tests.simulation.clients import ANSWER_S, Told, raw, told
from tests.simulation.conftest import StartBus
from tests.support.wait import until

ANNE = BusUser("anne", publish=("say.*", "all.>"), subscribe=("hear.*", "in.anne.>", "one"), answers=True)
ROOT = BusUser("root", publish=(">",), subscribe=(">",), answers=False)
INSTANCES = [role_user(role, f"{role}-0") for role in ("gateway", "tokenizer", "decode", "prefill")]
CLOSED = ServerSettings(
    users=tuple((user, f"password of {user.name}") for user in (ANNE, ROOT, operator_user(), *INSTANCES))
)
TOKENIZER, DECODE = inbox("tokenizer", "tokenizer-0"), inbox("decode", "decode-0")
TOKENIZED = Tokenized(b"", b"")


@pytest.fixture
async def closed(start_bus: StartBus) -> EitherBus:
    return await start_bus(CLOSED)


def login(user: str) -> dict[str, str]:
    return {"user": user, "password": f"password of {user}"}


def credentials(user: str) -> Credentials:
    return Credentials(user, f"password of {user}")


def soon() -> Deadline:
    return Deadline.after(ANSWER_S)


# ---- who gets in --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"user": "anne", "pass": "guess"}, {"user": "eve", "pass": "x"}, {"a": 1}]
)
async def test_who_is_not_known_is_refused_with_one_sentence(
    closed: EitherBus, options: dict[str, str]
) -> None:
    async with raw(closed.url, **options) as client:
        assert client.info["auth_required"] is True
        assert await client.rest() == [b"-ERR 'Authorization Violation'"]


@pytest.mark.parametrize("first", [b"PING\r\n", b"SUB a 1\r\n", b"HELLO\r\n", b"\r\n"])
async def test_who_does_not_begin_with_a_name_is_refused(closed: EitherBus, first: bytes) -> None:
    async with raw(closed.url) as client:
        client.say(first)
        assert await client.rest() == [b"-ERR 'Authorization Violation'"]


async def test_who_says_nothing_is_not_waited_for(closed: EitherBus) -> None:
    async with raw(closed.url) as client:
        assert await client.rest() == [b"-ERR 'Authentication Timeout'"]


async def test_our_connection_ends_its_start_at_once_when_it_is_refused(closed: EitherBus) -> None:
    with pytest.raises(Unavailable, match=r"refuses the user anne .*Authorization Violation"):
        await Connection.open(closed.url, name="anne", credentials=Credentials("anne", "guess"))
    with pytest.raises(Unavailable, match="refuses a client without a user"):
        await Connection.open(closed.url, name="nobody")


# ---- publishing ---------------------------------------------------------------------------------------


async def test_what_may_not_be_said_is_not_heard_and_the_sentence_names_its_subject(
    closed: EitherBus,
) -> None:
    async with told(closed.url, **login("root")) as root, told(closed.url, **login("anne")) as anne:
        ear = await root.hear(">")
        for subject in ("say.a", "say", "say.a.b", "all", "all.a", "all.a.b", "Say.a"):
            await anne.say(subject, subject.encode())
        assert await ear.has(3) == [b"say.a", b"all.a", b"all.a.b"]
        assert anne.errors == [
            f'nats: permissions violation for publish to "{subject}"'
            for subject in ("say", "say.a.b", "all", "say.a")
        ]
        assert anne.client.is_connected


async def test_a_question_that_may_not_be_asked_has_no_answer_of_any_kind(closed: EitherBus) -> None:
    async with told(closed.url, **login("anne")) as anne:
        ear = await anne.hear("in.anne.1")
        await anne.say("forbidden", b"x", reply="in.anne.1")
        assert ear.data == []
        await anne.say("say.nobody", b"x", reply="in.anne.1")
        assert ear.data == [b""]


async def test_a_reply_may_be_wanted_where_one_may_not_publish(closed: EitherBus) -> None:
    async with told(closed.url, **login("root")) as root, told(closed.url, **login("anne")) as anne:
        ear = await root.hear("say.*")
        await anne.say("say.a", b"x", reply="in.root.1")
        await until(lambda: [one.reply for one in ear.heard] == ["in.root.1"])
        assert anne.errors == []


# ---- subscribing --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "allowed"),
    [
        ("hear.a", True), ("hear.*", True), ("one", True), ("in.anne.a", True), ("in.anne.a.b", True),
        ("in.anne.>", True), ("in.anne.*", True), ("in.anne.*.b", True),
        ("hear.a.b", False), ("hear", False), ("*", False), (">", False), ("*.a", False), ("in.*.a", False),
        ("in.>", False), ("hear.a.>", False), ("on*", False),
    ],
)  # fmt: skip
async def test_a_subscription_is_let_in_or_refused_as_a_whole(
    closed: EitherBus, pattern: str, allowed: bool
) -> None:
    async with raw(closed.url, user="anne", **{"pass": "password of anne"}) as anne:
        anne.say(b"SUB %b 1\r\n" % pattern.encode())
        refused = f"-ERR 'Permissions Violation for Subscription to \"{pattern}\"'".encode()
        assert await anne.pong() == ([] if allowed else [refused])


async def test_the_rest_of_a_level_passes_for_one_token_of_it(closed: EitherBus) -> None:
    """The server takes a wanted pattern for a subject: `hear.>` is then one token behind `hear`."""
    async with told(closed.url, **login("root")) as root, told(closed.url, **login("anne")) as anne:
        ear = await anne.hear("hear.>")
        await root.say("hear.a", b"1")
        await root.say("hear.a.b", b"2")
        assert anne.errors == []
        assert await ear.has(2) == [b"1", b"2"]


async def test_a_refused_member_of_a_group_hears_which(closed: EitherBus) -> None:
    async with raw(closed.url, user="anne", **{"pass": "password of anne"}) as anne:
        anne.say(b"SUB no g 1\r\nSUB one g 2\r\n")
        assert await anne.pong() == [
            b'-ERR \'Permissions Violation for Subscription to "no" using queue "g"\''
        ]


async def test_serving_what_may_not_be_read_fails_with_a_sentence(closed: EitherBus) -> None:
    bus = await Bus.connect(closed.url, name="decode", credentials=credentials("decode-0"))
    got: list[Delivery] = []
    try:
        with pytest.raises(Unavailable, match=r"does not let this user read penstock\.tokenizer"):
            await bus.serve(TOKENIZER, got.append)
        await bus.serve(DECODE, got.append)
    finally:
        await bus.close()


# ---- answers ------------------------------------------------------------------------------------------


async def answered(root: Told, anne: Told, asks: int, answers: int) -> list[bytes]:
    """What comes of so many answers to one reply subject, after so many questions with it."""
    ear, questions = await root.hear("in.root"), await anne.hear("one")
    await root.say("one", *[b"?"] * asks, reply="in.root")
    await questions.has(asks)
    await anne.say("in.root", *[b"%d" % number for number in range(answers)])
    await root.settle()
    return ear.data


async def test_who_was_asked_may_answer_once(closed: EitherBus) -> None:
    async with told(closed.url, **login("root")) as root, told(closed.url, **login("anne")) as anne:
        await anne.say("in.root", b"unasked")
        assert await answered(root, anne, asks=1, answers=2) == [b"0"]
        assert anne.errors == ['nats: permissions violation for publish to "in.root"'] * 2


async def test_who_was_asked_and_has_answered_may_be_asked_again(closed: EitherBus) -> None:
    async with told(closed.url, **login("root")) as root, told(closed.url, **login("anne")) as anne:
        ear, questions = await root.hear("in.root"), await anne.hear("one")
        for count in (1, 2, 3):
            await root.say("one", b"?", reply="in.root")
            await questions.has(count)
            await anne.say("in.root", b"!")
        assert await ear.has(3) == [b"!"] * 3
        assert anne.errors == []


@pytest.mark.parametrize(("asks", "heard"), [(2, []), (3, [b"0"]), (4, []), (5, [b"0"])])
async def test_a_question_that_comes_again_before_its_answer_uses_that_answer_up(
    closed: EitherBus, asks: int, heard: list[bytes]
) -> None:
    """The server counts each look at a reply that it knows: so who asks again has to name another reply."""
    async with told(closed.url, **login("root")) as root, told(closed.url, **login("anne")) as anne:
        assert await answered(root, anne, asks, answers=1) == heard


async def test_an_own_inbox_is_read_by_nobody_else(closed: EitherBus) -> None:
    async with (
        told(closed.url, **login("decode-0")) as decode,
        told(closed.url, **login("gateway-0")) as gateway,
    ):
        await decode.client.subscribe(f"{answers('gateway-0')}.>")
        await decode.settle()
        assert len(decode.errors) == 1
        await gateway.hear(f"{answers('gateway-0')}.>")
        assert gateway.errors == []


async def test_a_fleet_asks_and_answers_on_its_closed_bus(closed: EitherBus) -> None:
    gateway = await Bus.connect(closed.url, name="gateway", credentials=credentials("gateway-0"))
    tokenizer = await Bus.connect(closed.url, name="tokenizer", credentials=credentials("tokenizer-0"))
    operator = await Bus.connect(closed.url, name="operator", credentials=credentials("operator"))
    replies: list[asyncio.Task[None]] = []

    def receive(delivery: Delivery) -> None:
        asked = isinstance(delivery.message, AuditRequest)
        answer = AuditReport("tokenizer", "tokenizer-0", 1, ()) if asked else TOKENIZED
        assert delivery.sender == ("operator" if asked else "gateway-0")
        replies.append(asyncio.create_task(tokenizer.reply(delivery.envelope, answer)))

    try:
        await tokenizer.serve(TOKENIZER, receive)
        assert await gateway.ask(TOKENIZER, Tokenize("text"), Envelope(), soon()) == TOKENIZED
        assert isinstance(await operator.ask(TOKENIZER, AuditRequest(), Envelope(), soon()), AuditReport)
        got: list[Delivery] = []
        await gateway.serve(inbox("gateway", "gateway-0"), got.append)
        await tokenizer.publish(inbox("gateway", "gateway-0"), Cancel("no business of a tokenizer's"))
        await tokenizer.flush()
        await gateway.flush()
        assert got == []
    finally:
        for one in (gateway, tokenizer, operator):
            await one.close()


async def test_an_ask_that_came_twice_is_answered_on_a_closed_bus(closed: EitherBus) -> None:
    """Whoever has lost its connection asks again what is open, of who may be working on it still."""
    gateway = await Bus.connect(closed.url, name="gateway", credentials=credentials("gateway-0"))
    tokenizer = await Bus.connect(closed.url, name="tokenizer", credentials=credentials("tokenizer-0"))
    taken: list[Delivery] = []
    try:
        await tokenizer.serve(TOKENIZER, taken.append)
        ask = asyncio.create_task(gateway.ask(TOKENIZER, Tokenize("text"), Envelope(), soon()))
        await until(lambda: taken)
        gateway.ask_again(TOKENIZER)
        await asyncio.sleep(0)
        await gateway.flush()
        await tokenizer.flush()
        await tokenizer.reply(taken[0].envelope, TOKENIZED)
        assert await ask == TOKENIZED
        assert len(taken) == 1
    finally:
        await gateway.close()
        await tokenizer.close()


# ---- new passwords ------------------------------------------------------------------------------------


async def test_who_has_another_password_now_is_sent_away_and_the_others_stay(closed: EitherBus) -> None:
    async with raw(closed.url, **{**login("anne"), "pass": "password of anne"}) as anne:
        await anne.pong()
        async with told(closed.url, **login("root")) as root:
            await closed.reload(replace(CLOSED, users=((ANNE, "another"), *CLOSED.users[1:])))
            assert await anne.rest() == [b"-ERR 'Authorization Violation'"]
            await root.settle()
            assert root.events == []
        async with raw(closed.url, user="anne", **{"pass": "another"}) as again:
            assert await again.pong() == []


async def test_who_may_read_less_now_loses_what_it_had_subscribed_to(closed: EitherBus) -> None:
    async with raw(closed.url, user="anne", **{"pass": "password of anne"}) as anne:
        anne.say(b"SUB one 1\r\nSUB hear.a 2\r\n")
        await anne.pong()
        less = replace(ANNE, subscribe=("hear.*",))
        await closed.reload(replace(CLOSED, users=((less, "password of anne"), *CLOSED.users[1:])))
        assert await anne.line() == b'-ERR \'Permissions Violation for Subscription to "one" (sid "1")\''
        anne.say(b"SUB one 3\r\n")
        assert await anne.pong() == [b"-ERR 'Permissions Violation for Subscription to \"one\"'"]
