"""Everybody asks what stands in for the world, also who took hold of a seam before; then the system again."""

from __future__ import annotations

import re
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest

from shared.deadline import ClockReading, Deadline
from shared.seams.buggify import BUGGIFY
from shared.seams.chance import CHANCE
from shared.seams.clock import SYSTEM_CLOCK
from shared.seams.threads import THREADS
from tests.support.clock import FakeClock
from tests.support.data import REPOSITORY


class NanosecondClock(FakeClock):
    def monotonic_ns(self) -> int:
        return round(self.monotonic_s() * 1e9)

    def thread_cpu_ns(self) -> int:
        return self.monotonic_ns()


def test_a_clock_is_the_systems_own_function() -> None:
    assert SYSTEM_CLOCK.monotonic_s is time.monotonic
    assert SYSTEM_CLOCK.monotonic_ns is time.monotonic_ns
    assert SYSTEM_CLOCK.thread_cpu_ns is time.thread_time_ns


def test_a_clock_that_stands_in_is_read_by_defaults_and_by_name() -> None:
    clock = NanosecondClock(monotonic_s=5.0, unix_us=7)
    with SYSTEM_CLOCK.replaced_by(clock):
        assert Deadline.after(2.0).at_s == 7.0
        assert ClockReading.now() == ClockReading(7, 7)
        clock.advance(1.0)
        assert (SYSTEM_CLOCK.monotonic_s(), SYSTEM_CLOCK.monotonic_ns()) == (6.0, 6_000_000_000)
    assert SYSTEM_CLOCK.monotonic_s is time.monotonic


def test_the_system_is_read_again_after_a_failure() -> None:
    with pytest.raises(ZeroDivisionError), SYSTEM_CLOCK.replaced_by(NanosecondClock()):
        raise ZeroDivisionError
    assert SYSTEM_CLOCK.monotonic_s is time.monotonic


class Ones:
    def bits(self, count: int, /) -> int:
        return (1 << count) - 1

    def hex_digits(self, num_bytes: int, /) -> str:
        return "11" * num_bytes

    def one_of(self, letters: str, /) -> str:
        return letters[0]


def test_chance_is_the_systems_own_but_for_a_stand_in() -> None:
    with CHANCE.replaced_by(Ones()):
        assert (CHANCE.bits(3), CHANCE.hex_digits(2), CHANCE.one_of("abc")) == (7, "1111", "a")
    assert CHANCE.hex_digits is secrets.token_hex
    assert CHANCE.bits is secrets.randbits


class Inline(Executor):
    """A pool whose caller does the work."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


def test_a_pool_has_threads_of_its_name_but_for_a_stand_in() -> None:
    began: list[str] = []
    with THREADS.pool(1, "worker", began.append, ("began",)) as pool:
        name = pool.submit(lambda: threading.current_thread().name).result(60)
    assert name.startswith("worker")
    assert began == ["began"]
    with THREADS.replaced_by(lambda *_: Inline()):
        ident = THREADS.pool(1, "worker").submit(threading.get_ident).result()
    assert ident == threading.get_ident()


class Always:
    def takes(self, point: str, /) -> bool:
        return bool(point)


def test_no_rare_path_is_taken_unless_something_stands_in() -> None:
    assert not BUGGIFY.takes("decode is full")
    with BUGGIFY.replaced_by(Always()):
        assert BUGGIFY.takes("decode is full")
    assert not BUGGIFY.takes("decode is full")


def test_points_of_rare_paths_have_names_of_their_own() -> None:
    """A world takes some of them by their names."""
    found = [
        name
        for top in ("services", "shared")
        for path in (REPOSITORY / top).rglob("*.py")
        for name in re.findall(r'BUGGIFY\.takes\("([^"]+)"\)', path.read_text("utf-8"))
    ]
    assert len(found) == len(set(found)) >= 5
