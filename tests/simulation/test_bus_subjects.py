"""Who gets which message, on a real nats-server and in memory: subjects, groups, limits of subscriptions."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack

import pytest

from tests.simulation.buses import EitherBus
from tests.simulation.clients import raw, told

SUBJECTS = ("a", "a.b", "a.b.c", "a.b.d", "a.c.c", "b.b", "a.b.c.d")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a", ["a"]),
        ("a.b", ["a.b"]),
        ("a.*", ["a.b"]),
        ("*.b", ["a.b", "b.b"]),
        ("*", ["a"]),
        ("a.>", ["a.b", "a.b.c", "a.b.d", "a.c.c", "a.b.c.d"]),
        ("a.*.c", ["a.b.c", "a.c.c"]),
        ("*.*", ["a.b", "b.b"]),
        ("a.b.>", ["a.b.c", "a.b.d", "a.b.c.d"]),
        ("a.*.>", ["a.b.c", "a.b.d", "a.c.c", "a.b.c.d"]),
        (">", list(SUBJECTS)),
    ],
)
async def test_a_pattern_gets_its_subjects_in_the_order_of_publishing(
    bus: EitherBus, pattern: str, expected: list[str]
) -> None:
    async with told(bus.url) as ear, told(bus.url) as mouth:
        heard = await ear.hear(pattern)
        for subject in SUBJECTS:
            await mouth.client.publish(subject, subject.encode())
        await mouth.settle()
        await ear.settle()
        assert [one.subject for one in heard.heard] == expected


async def test_each_of_overlapping_subscriptions_gets_a_copy(bus: EitherBus) -> None:
    async with told(bus.url) as client:
        ears = [await client.hear(pattern) for pattern in ("a.b", "a.*", "a.>", "a.b")]
        await client.say("a.b", b"1")
        assert [ear.data for ear in ears] == [[b"1"]] * 4


@pytest.mark.parametrize("subject", ["a..b", ".a", "a.", "."])
async def test_a_subject_with_an_empty_token_is_nobodys_and_harms_nothing(
    bus: EitherBus, subject: str
) -> None:
    async with told(bus.url) as client:
        everything = await client.hear(">")
        await client.say(subject, b"lost")
        await client.say("a", b"heard")
        assert everything.data == [b"heard"]
        assert client.errors == []


async def test_wildcards_in_a_published_subject_are_letters(bus: EitherBus) -> None:
    async with told(bus.url) as client:
        literal, one, rest = [await client.hear(pattern) for pattern in ("a.b", "a.*", "a.>")]
        await client.say("a.*", b"star")
        await client.say("a.>", b"rest")
        assert literal.data == []
        assert one.data == rest.data == [b"star", b"rest"]


@pytest.mark.parametrize("pattern", [b"a..b", b".a", b"a.", b"a.>.b"])
async def test_an_impossible_subscription_is_refused_and_the_connection_stays(
    bus: EitherBus, pattern: bytes
) -> None:
    async with raw(bus.url, name="raw") as client:
        client.say(b"SUB %b 1\r\nSUB ok 2\r\n" % pattern)
        assert await client.pong() == [b"-ERR 'Invalid Subject'"]
        client.say(b"PUB ok 1\r\nx\r\n")
        assert await client.pong() == [b"MSG ok 2 1", b"x"]


async def test_a_wildcard_inside_a_token_is_a_letter(bus: EitherBus) -> None:
    async with raw(bus.url, name="raw") as client:
        client.say(b"SUB a*.b 1\r\nSUB a>.b 2\r\nPUB a*.b 1\r\nx\r\nPUB ax.b 1\r\ny\r\nPUB a>.b 1\r\nz\r\n")
        assert await client.pong() == [b"MSG a*.b 1 1", b"x", b"MSG a>.b 2 1", b"z"]


async def test_messages_of_one_connection_stay_in_order_over_subjects_and_subscribers(
    bus: EitherBus,
) -> None:
    numbers = [b"%d" % number for number in range(300)]
    async with told(bus.url) as one, told(bus.url) as other, told(bus.url) as mouth:
        ears = [await one.hear("a.*"), await other.hear("a.>"), await mouth.hear("a.*")]
        for number, data in enumerate(numbers):
            await mouth.client.publish(f"a.{number % 7}", data)
        for ear in ears:
            assert await ear.has(300) == numbers


async def test_own_messages_come_back_unless_a_client_wants_no_echo(bus: EitherBus) -> None:
    async with told(bus.url) as client, told(bus.url, no_echo=True) as mute:
        echoed, unechoed = await client.hear("a"), await mute.hear("a")
        await client.say("a", b"of client")
        await mute.say("a", b"of mute")
        assert await echoed.has(2) == [b"of client", b"of mute"]
        assert unechoed.data == [b"of client"]


async def test_nothing_comes_after_an_unsubscription(bus: EitherBus) -> None:
    async with told(bus.url) as client:
        ear, other = await client.hear("a"), await client.hear("a")
        await client.say("a", b"1")
        await ear.subscription.unsubscribe()
        await client.say("a", b"2")
        assert (ear.data, other.data) == ([b"1"], [b"1", b"2"])


async def test_a_subscription_id_that_is_taken_keeps_its_first_subject(bus: EitherBus) -> None:
    async with raw(bus.url, name="raw") as client:
        client.say(b"SUB a 1\r\nSUB b 1\r\nPUB b 1\r\nb\r\nPUB a 1\r\na\r\n")
        assert await client.pong() == [b"MSG a 1 1", b"a"]


async def test_an_unsubscription_of_nothing_is_no_error(bus: EitherBus) -> None:
    async with raw(bus.url, name="raw") as client:
        client.say(b"UNSUB 7\r\nUNSUB 8 3\r\n")
        assert await client.pong() == []


# ---- so many and no more ------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "limit", "expected"), [(0, 2, 2), (1, 3, 3), (2, 2, 2), (3, 1, 3)])
async def test_a_limit_counts_what_came_before_it(
    bus: EitherBus, before: int, limit: int, expected: int
) -> None:
    publish = b"PUB a 1\r\nx\r\n"
    async with raw(bus.url, name="raw") as client:
        client.say(b"SUB a 1\r\n" + publish * before + b"UNSUB 1 %d\r\n" % limit + publish * 5)
        assert await client.pong() == [b"MSG a 1 1", b"x"] * expected


async def test_who_has_had_its_limit_listens_no_more(bus: EitherBus) -> None:
    async with raw(bus.url, name="raw") as client:
        client.say(b"SUB in 9\r\nSUB a 1\r\nUNSUB 1 1\r\n")
        client.say(b"PUB a in 1\r\nx\r\nPUB a in 1\r\ny\r\n")
        first, second = b"MSG a 1 in 1", b"HMSG in 9 33 33"
        assert await client.pong() == [
            first, b"x", second, b"NATS/1.0 503", b"Nats-Subject: a", b"", b"",
        ]  # fmt: skip


async def test_an_unlimited_unsubscription_ends_a_limited_one(bus: EitherBus) -> None:
    async with raw(bus.url, name="raw") as client:
        client.say(b"SUB a 1\r\nUNSUB 1 5\r\nPUB a 1\r\nx\r\nUNSUB 1\r\nPUB a 1\r\ny\r\n")
        assert await client.pong() == [b"MSG a 1 1", b"x"]


# ---- queue groups -------------------------------------------------------------------------------------


async def test_one_member_of_each_group_and_all_others_get_a_message(bus: EitherBus) -> None:
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(told(bus.url)) for _ in range(3)]
        red = [await client.hear("a", queue="red") for client in clients]
        blue = [await client.hear("a", queue="blue") for client in clients[:2]]
        alone = [await client.hear("a") for client in clients]
        numbers = [b"%d" % number for number in range(60)]
        await clients[0].say("a", *numbers)
        for client in clients:
            await client.settle()
        for group in (red, blue):
            assert Counter(data for ear in group for data in ear.data) == Counter(numbers)
            assert all(ear.data for ear in group), "everybody has a part of sixty"
        assert [ear.data for ear in alone] == [numbers] * 3


async def test_a_group_is_one_over_all_patterns_of_its_members(bus: EitherBus) -> None:
    async with told(bus.url) as client:
        ears = [await client.hear(pattern, queue="g") for pattern in ("a.b", "a.*", ">")]
        await client.say("a.b", *[b"x"] * 30)
        assert sum(len(ear.data) for ear in ears) == 30
        await client.say("c", b"y")
        assert ears[2].data[-1] == b"y"


async def test_who_leaves_a_group_leaves_its_messages_to_the_others(bus: EitherBus) -> None:
    async with told(bus.url) as one, told(bus.url) as other:
        stays, leaves = await one.hear("a", queue="g"), await one.hear("a", queue="g")
        async with told(bus.url) as closing:
            await closing.hear("a", queue="g")
        await leaves.subscription.unsubscribe()
        await one.settle()
        await other.say("a", *[b"x"] * 20)
        assert await stays.has(20) == [b"x"] * 20
        assert leaves.data == []


async def test_a_group_passes_over_members_that_want_no_echo(bus: EitherBus) -> None:
    async with told(bus.url, no_echo=True) as mute, told(bus.url) as other:
        own, ear = await mute.hear("a", queue="g"), await other.hear("a", queue="g")
        await mute.say("a", *[b"x"] * 20)
        assert await ear.has(20) == [b"x"] * 20
        assert own.data == []


async def test_a_limited_member_of_a_group_takes_its_number_and_leaves_the_rest(bus: EitherBus) -> None:
    async with raw(bus.url, name="raw") as client:
        client.say(b"SUB a g 1\r\nSUB a g 2\r\nUNSUB 1 3\r\n" + b"PUB a 1\r\nx\r\n" * 40)
        lines = Counter(await client.pong())
        assert lines[b"MSG a 1 1"] == 3
        assert lines[b"MSG a 2 1"] == 37
