from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from shared.engine import Engine, core_arbiter
from shared.engine.core_arbiter import HEADER_BYTES, LOOK_EVERY_S, SLOTS, CoreArbiter, WorkClass
from shared.engine.native.library import PromptsShape, SlotShape, library
from shared.engine.step_pacer import REMEMBERED_STEPS, OwnRequests, WaitingPrompts
from shared.process.cores import usable_cores
from tests.support.clock import FakeClock
from tests.support.data import REPOSITORY
from tests.support.engine import GREEDY, admit, generate, make_engine, save_random_model
from tests.support.fresh_programs import FORKABLE
from tests.support.wait import until

pytestmark = pytest.mark.skipif(
    library() is None, reason="the kernels were not built, or this CPU cannot run them"
)
DECODE, SPECULATOR, PREFILL = WorkClass
EVERY_CPU = (1 << 64) - 1


class Board:
    """Slots of processes that there are not, on a machine that there is not."""

    def __init__(self) -> None:
        kernels = library()
        assert kernels is not None
        self.kernels = kernels
        memory = bytearray(kernels.penstock_board_bytes() + 64)
        self._memory = memory
        start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.address = (start + 63) // 64 * 64

    def take(self, number: int, work_class: WorkClass, cores: int, **fields: int) -> None:
        slot = SlotShape(work_class=work_class, cores=cores, limit=fields.get("limit", cores))
        slot.cgroup = fields.get("cgroup", 0)
        slot.cpus[0] = fields.get("cpus", EVERY_CPU)
        self.kernels.penstock_take_slot(self.address, number, ctypes.byref(slot))

    def compute(self, number: int, *, now: bool = True) -> None:
        self.kernels.penstock_compute(self.address, number, now)

    def prompts(self, number: int) -> tuple[int, int]:
        found = PromptsShape()
        self.kernels.penstock_prompts(self.address, number, ctypes.byref(found))
        return found.requests, found.moves

    def share(self, number: int) -> int:
        share: int = self.kernels.penstock_share(self.address, number)
        return share


@pytest.fixture
def joined() -> Iterator[Board]:
    """This process computes with the threads of slot 0, of 8 cores."""
    board = Board()
    board.take(0, DECODE, 8)
    board.kernels.penstock_join(board.address, 0)
    yield board
    board.kernels.penstock_join(None, 0)


@pytest.mark.parametrize(
    ("cores", "computing", "shares"),
    [
        (8, [DECODE], [8]),
        (8, [PREFILL], [8]),
        (8, [DECODE, PREFILL], [4, 4]),
        (9, [DECODE, PREFILL], [5, 4]),
        (8, [DECODE, DECODE], [4, 4]),
        (8, [DECODE, SPECULATOR, PREFILL], [4, 2, 2]),
        (8, [DECODE, PREFILL, PREFILL], [4, 2, 2]),
        (2, [DECODE, PREFILL], [1, 1]),
        (1, [DECODE, SPECULATOR, PREFILL], [1, 1, 1]),
        (2, [DECODE] * 5, [1] * 5),
    ],
)
def test_decode_goes_first_and_nobody_is_without_a_core(
    cores: int, computing: Sequence[WorkClass], shares: list[int]
) -> None:
    board = Board()
    for number, work_class in enumerate(computing):
        board.take(number, work_class, cores)
        board.compute(number)
    assert [board.share(number) for number in range(len(computing))] == shares


def test_those_that_wait_take_nothing() -> None:
    board = Board()
    board.take(0, PREFILL, 8)
    board.take(1, DECODE, 8)
    assert board.share(0) == 8
    board.compute(1)
    assert board.share(0) == 4
    board.compute(1, now=False)
    assert board.share(0) == 8


def test_whoever_is_on_other_cpus_takes_nothing() -> None:
    board = Board()
    board.take(0, PREFILL, 4, cpus=0b00001111)
    board.take(1, DECODE, 4, cpus=0b11110000)
    board.take(2, DECODE, 2, cpus=0b00011000)
    board.compute(1)
    assert board.share(0) == 4
    board.compute(2)
    assert board.share(0) == 2


@pytest.mark.parametrize(("cgroup", "share"), [(5, 2), (6, 4)])
def test_a_quota_is_shared_by_those_that_have_it_together(cgroup: int, share: int) -> None:
    board = Board()
    board.take(0, PREFILL, 64, limit=4, cgroup=5)
    board.take(1, DECODE, 64, limit=4, cgroup=cgroup)
    board.compute(1)
    assert board.share(0) == share


def test_alone_a_process_has_all_cores(tmp_path: Path) -> None:
    slot = CoreArbiter(PREFILL, tmp_path)
    slot.compute(now=True)
    assert slot.threads == slot.most == usable_cores()
    slot.close()


def started(folder: Path, code: str) -> subprocess.Popen[bytes]:
    program = folder / FORKABLE
    program.write_text(code)
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, str(program)], env=environ, stdin=pipe, stdout=pipe)


def test_two_processes_of_one_folder_share_the_cores(tmp_path: Path) -> None:
    prefill, decode = CoreArbiter(PREFILL, tmp_path), CoreArbiter(DECODE, tmp_path)
    decode.compute(now=True)
    assert prefill.threads == max(1, usable_cores() // 2)
    decode.close()
    assert prefill.threads == usable_cores()
    prefill.close()


def test_a_slot_that_was_left_is_taken_again(tmp_path: Path) -> None:
    first, second = CoreArbiter(DECODE, tmp_path), CoreArbiter(DECODE, tmp_path)
    first.close()
    third = CoreArbiter(DECODE, tmp_path)
    assert (third.number, second.number) == (first.number, first.number + 1)
    third.close()
    second.close()


def test_a_process_that_was_killed_while_it_computed_is_forgotten(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from shared.engine.core_arbiter import CoreArbiter, WorkClass
CoreArbiter(WorkClass.DECODE, Path({str(tmp_path)!r})).compute(now=True)
print("computing", flush=True)
sys.stdin.read()
"""
    clock = FakeClock()
    slot = CoreArbiter(PREFILL, tmp_path, clock=clock)
    with started(tmp_path, code) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"computing\n"
        assert other.stdin is not None
        computing = [number for number, each in enumerate(slot._slots) if each.computing]
        assert computing == [1]
        slot.forget_lost()
        assert slot._slots[1].computing  # it is there
        other.send_signal(signal.SIGKILL)
        other.wait(60)
    clock.advance(LOOK_EVERY_S)
    slot.compute(now=True)
    assert not slot._slots[1].computing
    assert slot.threads == usable_cores()
    slot.close()


def test_a_process_that_stands_still_is_forgotten_until_its_next_step(tmp_path: Path) -> None:
    clock = FakeClock()
    slot, other = CoreArbiter(PREFILL, tmp_path, clock=clock), CoreArbiter(DECODE, tmp_path)
    other.begin_step()
    for _ in range(2):
        assert slot.threads == max(1, usable_cores() // 2)
        clock.advance(LOOK_EVERY_S)
        slot.compute(now=True)
    assert slot.threads == usable_cores()
    other.begin_step()
    assert slot.threads == max(1, usable_cores() // 2)
    other.close()
    slot.close()


def test_without_a_free_slot_a_process_is_told(tmp_path: Path) -> None:
    slots = [CoreArbiter(DECODE, tmp_path) for _ in range(SLOTS)]
    with pytest.raises(OSError, match=f"all {SLOTS} slots"):
        CoreArbiter(DECODE, tmp_path)
    for slot in slots:
        slot.close()


def test_a_board_has_all_of_its_memory_before_anybody_writes_to_it(tmp_path: Path) -> None:
    """A page that a full disk has no room for kills who writes to it."""
    path = tmp_path / f"penstock-cores-{os.geteuid()}-{core_arbiter.LAYOUT}"
    path.touch()  # as one leaves it that was killed before it could make it larger
    CoreArbiter(DECODE, tmp_path).close()
    status = path.stat()
    assert status.st_blocks * 512 >= status.st_size >= HEADER_BYTES + SLOTS * ctypes.sizeof(SlotShape)


def test_a_board_that_is_somebody_elses_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "theirs").touch()
    name = f"penstock-cores-{os.geteuid()}-{core_arbiter.LAYOUT}"
    (tmp_path / name).symlink_to(tmp_path / "theirs")
    with pytest.raises(OSError, match=name):
        CoreArbiter(DECODE, tmp_path)
    assert (tmp_path / "theirs").stat().st_size == 0


def test_seats_lie_where_the_kernels_look_for_them() -> None:
    kernels = library()
    assert kernels is not None
    assert kernels.penstock_board_bytes() == HEADER_BYTES + SLOTS * ctypes.sizeof(SlotShape)


@contextlib.contextmanager
def slots_changing(board: Board, seed: int) -> Iterator[None]:
    """Others begin and end to compute at random, as fast as they can."""
    others, chance, over = range(1, 8), random.Random(seed), threading.Event()
    for number in others:
        board.take(number, DECODE, 8)

    def change() -> None:
        while not over.is_set():
            board.compute(chance.choice(others), now=chance.random() < 0.5)

    thread = threading.Thread(target=change)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(60)


@pytest.mark.thorough(but="quantized | dense")
@pytest.mark.parametrize("shape", ["dense", "quantized", "sparse"])
def test_answers_are_bitwise_the_same_while_the_number_of_threads_changes(
    shape: str, joined: Board, tmp_path: Path
) -> None:
    from transformers import MixtralConfig  # noqa: PLC0415  # seconds to import

    size: dict[str, Any] = {
        "hidden_size": 512,
        "intermediate_size": 1024,
        "head_dim": 64,
        "num_attention_heads": 8,
    }
    folder = (
        save_random_model(tmp_path, MixtralConfig, num_local_experts=4, **size)
        if shape == "sparse"
        else save_random_model(tmp_path, **size)
    )
    options: dict[str, Any] = {"quantization": "int8"} if shape == "quantized" else {}
    prompts = [[(7 * i + number) % 97 for i in range(90)] for number in range(4)]
    alone = make_engine(folder, threads=1, **options)
    expected = [alone.logits(prompt) for prompt in prompts]
    elastic = make_engine(folder, threads=8, **options)
    with slots_changing(joined, seed=1):
        for _ in range(5):
            for prompt, logits in zip(prompts, expected, strict=True):
                assert (elastic.logits(prompt) == logits).all()
                assert (elastic.logits(prompt[:1]) == logits[:1]).all()


def test_an_engine_holds_the_cores_from_its_first_step_to_its_last(tmp_path: Path) -> None:
    engine, _, other = engine_in_a_slot(tmp_path)
    admit(engine, "a", [1, 2, 3], GREEDY)
    assert other.threads == usable_cores()
    engine.step()
    assert other.threads == max(1, usable_cores() // 2)
    while engine.has_work:
        engine.step()
    assert other.threads == usable_cores()
    engine.close()
    other.close()


def test_an_engine_whose_last_sequence_is_released_gives_the_cores_back(tmp_path: Path) -> None:
    engine, slot, other = engine_in_a_slot(tmp_path)
    admit(engine, "a", [1, 2, 3], GREEDY)
    engine.step()
    engine.release("a")
    assert not slot._slots[slot.number].computing
    engine.close()
    other.close()


def engine_in_a_slot(folder: Path) -> tuple[Engine, CoreArbiter, CoreArbiter]:
    """An engine on a slot, and somebody else's."""
    engine = make_engine(save_random_model(folder / "model"), threads=0)
    slot, other = CoreArbiter(DECODE, folder), CoreArbiter(PREFILL, folder)
    engine.share_cores(slot)
    return engine, slot, other


def test_an_engine_without_a_number_of_threads_has_one_per_core(tmp_path: Path) -> None:
    engine = make_engine(save_random_model(tmp_path), threads=0)
    assert engine.config.threads == engine.threads_now == usable_cores()
    assert generate(engine, [1, 2, 3], GREEDY)


@pytest.mark.parametrize(
    ("work_class", "cpus", "cgroup", "prompts"),
    [
        (PREFILL, 0b0110, 0, 3),
        (PREFILL, 0b1100, 0, 0),
        (PREFILL, 0b1100, 5, 3),
        (DECODE, 0b0011, 5, 0),
        (SPECULATOR, 0b0011, 5, 0),
    ],
)
def test_prompts_wait_for_cores_that_they_could_use(
    work_class: WorkClass, cpus: int, cgroup: int, prompts: int
) -> None:
    board = Board()
    board.take(0, DECODE, 2, cpus=0b0011, cgroup=5)
    board.take(1, work_class, 2, cpus=cpus, cgroup=cgroup)
    board.kernels.penstock_serve(board.address, 1, 3)
    assert board.prompts(0) == (0, 0)
    board.compute(1)
    assert board.prompts(0) == (prompts, 0)


def test_a_prefill_engine_that_computes_has_one_prompt_at_least(tmp_path: Path) -> None:
    prefill, decode = CoreArbiter(PREFILL, tmp_path), CoreArbiter(DECODE, tmp_path)
    prefill.begin_step()
    assert decode.prompts == WaitingPrompts(1)
    prefill.serve(4)
    assert decode.prompts == WaitingPrompts(4)
    prefill.close()
    assert decode.prompts == WaitingPrompts()
    decode.close()


@pytest.mark.parametrize("threads", [1, 2])
def test_an_engine_moves_while_it_computes(threads: int, tmp_path: Path) -> None:
    engine = make_engine(save_random_model(tmp_path / "model"), threads=threads)
    prefill, decode = CoreArbiter(PREFILL, tmp_path), CoreArbiter(DECODE, tmp_path)
    engine.share_cores(prefill)
    moves = set()
    for number in range(3):
        admit(engine, str(number), [1, 2, 3], GREEDY)
        engine.step()
        moves.add(decode.prompts.moves)
    assert len(moves) == 3
    engine.close()
    decode.close()


class SkippingClock:
    """The real one, ahead by what was skipped."""

    def __init__(self) -> None:
        self.skipped_s = 0.0

    def monotonic_s(self) -> float:
        return time.monotonic() + self.skipped_s

    def unix_us(self) -> int:
        raise AssertionError("an arbiter asks for no time of day")

    steady_us = unix_us


def steps(slot: CoreArbiter, clock: FakeClock | SkippingClock) -> None:
    """As many as it takes to know how long one is."""
    for _ in range(REMEMBERED_STEPS):
        slot.begin_step()
        if isinstance(clock, FakeClock):
            clock.advance(0.08)
        else:
            clock.skipped_s += 0.08
        slot.end_step()


def pauses_after_steps(slot: CoreArbiter, clock: SkippingClock) -> bool:
    """Whether it leaves the cores to others before its next step; it goes on at last in any case."""
    steps(slot, clock)
    assert slot.pause(OwnRequests(1))
    return not slot._slots[slot.number].computing


@pytest.fixture
def prefilling(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose engine, on slot 0, always has something to compute."""
    code = f"""
from pathlib import Path
from shared.engine import Engine, EngineConfig
from shared.engine.core_arbiter import CoreArbiter, WorkClass
from shared.sampling.parameters import SamplingParams
engine = Engine(EngineConfig({str(save_random_model(tmp_path / "model"))!r}, threads=0, kv_blocks=16))
engine.share_cores(CoreArbiter(WorkClass.PREFILL, Path({str(tmp_path)!r})))
def admit(key):
    engine.admit(key, [1, 2, 3], 3, SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True))
admit("first")
engine.step()
admit("second")
print("computing", flush=True)
while True:
    for output in engine.step().outputs:
        if output.finish_reason is not None:  # the other goes on
            admit(output.key)
"""
    with started(tmp_path, code) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"computing\n"
            yield process
        finally:
            process.kill()


@pytest.mark.thorough(but="9")
@pytest.mark.parametrize("lost_by", [signal.SIGSTOP, signal.SIGKILL])
def test_prompts_get_their_part_and_hold_nobody_once_their_process_is_lost(
    lost_by: signal.Signals, prefilling: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    clock = SkippingClock()
    slot = CoreArbiter(DECODE, tmp_path, prompt_weight=2.0, itl_target_s=10.0, clock=clock)
    for _ in range(2):
        assert any(pauses_after_steps(slot, clock) for _ in range(100))
    prefilling.send_signal(lost_by)
    if lost_by is signal.SIGKILL:
        prefilling.wait(60)
    for _ in range(2):  # in the first of them it may have moved still
        pauses_after_steps(slot, clock)
    assert not any(pauses_after_steps(slot, clock) for _ in range(3))
    prefilling.send_signal(signal.SIGCONT)
    slot.close()


@pytest.fixture
def standing(tmp_path: Path) -> Iterator[tuple[CoreArbiter, CoreArbiter]]:
    """Slots of prefill and decode, both in the midst of work, on a clock that stands still from now on."""
    clock = FakeClock()
    prefill = CoreArbiter(PREFILL, tmp_path)
    decode = CoreArbiter(DECODE, tmp_path, prompt_weight=2.0, itl_target_s=10.0, clock=clock)
    prefill.begin_step()
    steps(decode, clock)
    yield prefill, decode
    prefill.close()
    decode.close()


async def paused(decode: CoreArbiter) -> asyncio.Future[bool]:
    """What comes of its pause, which has begun."""
    pause = asyncio.ensure_future(asyncio.to_thread(decode.pause, OwnRequests(1)))
    await until(lambda: not decode._slots[decode.number].computing)
    return pause


async def test_a_pause_ends_with_the_last_prompt(standing: tuple[CoreArbiter, CoreArbiter]) -> None:
    prefill, decode = standing
    pause = await paused(decode)
    prefill.compute(now=False)
    assert await asyncio.wait_for(pause, 60)


async def test_a_pause_ends_early_for_what_else_there_is_to_do(
    standing: tuple[CoreArbiter, CoreArbiter],
) -> None:
    _, decode = standing
    pause = await paused(decode)
    decode.rouse()
    assert not await asyncio.wait_for(pause, 60)


async def test_who_was_roused_before_its_pause_does_not_begin_it(
    standing: tuple[CoreArbiter, CoreArbiter],
) -> None:
    _, decode = standing
    decode.rouse()
    assert not decode.pause(OwnRequests(1))
    assert decode._slots[decode.number].computing
    pause = await paused(decode)  # once
    decode.rouse()
    assert not await asyncio.wait_for(pause, 60)


def test_an_engine_without_a_slot_has_no_pause(tmp_path: Path) -> None:
    assert make_engine(save_random_model(tmp_path)).pause()


@pytest.mark.parametrize(("prompt_weight", "itl_target_s"), [(0.0, 1.0), (1.0, 0.0)])
def test_prompts_without_weight_and_tokens_without_time_make_no_pauses(
    tmp_path: Path, prompt_weight: float, itl_target_s: float
) -> None:
    slot = CoreArbiter(DECODE, tmp_path, prompt_weight=prompt_weight, itl_target_s=itl_target_s)
    assert not slot.pauses
    slot.close()
