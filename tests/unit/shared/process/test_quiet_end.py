"""A program that Ctrl-C meets in a moment when nothing can be cleaned up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from shared.process.quiet_end import interrupt_at_end
from tests.support.data import REPOSITORY

INTERRUPTED_AS_ITS_LOOP_IS_MADE = """
import asyncio.base_events, os, signal
from shared.process.quiet_end import end_quietly, run_loop

make = asyncio.base_events.BaseEventLoop.__init__

def interrupted(self):
    make(self)
    os.kill(os.getpid(), signal.SIGINT)

asyncio.base_events.BaseEventLoop.__init__ = interrupted

async def body():
    return 7

raise SystemExit(end_quietly(lambda: run_loop(body())))
"""


INTERRUPTED_IN_A_CALLBACK = """
import os, signal, time, weakref
import shared.process.quiet_end

def interrupted(_):
    os.kill(os.getpid(), signal.SIGINT)

held = set()
kept = weakref.ref(held, interrupted)
del held
while True:
    time.sleep(0.05)  # a signal just before a sleep begins is seen when that has ended
"""
INTERRUPTED_AGAIN_AT_ONCE = """
import os, signal, sys, time, weakref
import shared.process.quiet_end

def interrupted(_):
    os.kill(os.getpid(), signal.SIGINT)

def slow(hook):
    def begin(*args):
        hook(*args)
        time.sleep(0.3)  # another thread runs meanwhile, as on a busy machine
    return begin

import _thread
_thread.start_new_thread = slow(_thread.start_new_thread)
held = set()
kept = weakref.ref(held, interrupted)
del held
while True:
    time.sleep(0.05)
"""
INTERRUPTED_AS_IT_BEGINS = "import os, signal, shared.process.quiet_end; os.kill(os.getpid(), signal.SIGINT)"


@pytest.mark.parametrize(
    "program",
    [
        INTERRUPTED_AS_ITS_LOOP_IS_MADE,
        INTERRUPTED_IN_A_CALLBACK,
        INTERRUPTED_AGAIN_AT_ONCE,
        INTERRUPTED_AS_IT_BEGINS,
    ],
)
def test_ctrl_c_ends_a_program_quietly_whatever_it_meets(program: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def press_ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_first_ctrl_c_stops_what_a_block_does_and_is_raised_when_that_has_ended() -> None:
    did: list[str] = []

    def interrupted() -> None:
        with interrupt_at_end() as interrupt:
            interrupt.stops(lambda: did.append("stopped"))
            press_ctrl_c()
            did.append("went on to its end")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert did == ["stopped", "went on to its end"]


def test_a_ctrl_c_before_there_is_anything_to_stop_stops_it_once_it_is_there() -> None:
    did: list[str] = []

    def interrupted() -> None:
        with interrupt_at_end() as interrupt:
            press_ctrl_c()
            interrupt.stops(lambda: did.append("stopped"))

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert did == ["stopped"]


def test_a_second_ctrl_c_is_raised_at_once() -> None:
    did: list[str] = []

    def interrupted() -> None:
        with interrupt_at_end():
            press_ctrl_c()
            did.append("first")
            press_ctrl_c()
            did.append("second")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert did == ["first"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
