"""Share the cores of one host among the processes that compute on it: a file in memory with a slot for
each.

A slot says what kind of work its process does, on which CPUs, and whether it computes now; from that every
process knows how many threads it has (`Board::share` in native/core_arbiter.h), and decode when its next
step may begin while prompts wait (`step_pacer.py`). A slot is held by a lock on its
bytes of the file: the kernel drops it with its process, in whatever container that lived, and the slot is
free again. Who cannot have a slot computes with all of its threads.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import stat
import struct
from enum import IntEnum
from pathlib import Path

from shared.engine.native.library import PromptsShape, SlotShape, library
from shared.engine.step_pacer import ITL_TARGET_S, OwnRequests, StepPacer, WaitingPrompts
from shared.process.cores import cpu_quota, usable_cores, usable_cpus
from shared.seams.clock import SYSTEM_CLOCK, Clock

FOLDER = Path("/dev/shm")  # noqa: S108  # the memory that processes of a host share, by that name
LAYOUT = 2
"""The layout of the file, and part of its name: raise it with any change of it."""
SLOTS = 128
HEADER_BYTES = 64
CPU_BITS = 1024
LOOK_EVERY_S = 1.0
"""The least time between two looks at those who compute: whether they are there, and have moved since."""


class WorkClass(IntEnum):
    """The kind of work that a process computes; it decides who goes first where several do."""

    DECODE = 0
    SPECULATOR = 1
    PREFILL = 2


class CoreArbiter:
    """The place of one process on the board. Its methods are for one thread."""

    def __init__(
        self,
        work_class: WorkClass,
        folder: Path = FOLDER,
        *,
        prompt_weight: float = 0.0,
        itl_target_s: float = ITL_TARGET_S,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """Takes a slot for this process, on the CPUs that the calling thread may use. `prompt_weight`
        is that of prompts that wait for the same cores, for `pause`, which keeps to `itl_target_s`.

        Raises OSError where there is no board, or none of ours, or no slot.
        """
        kernels = library()
        if kernels is None or not hasattr(fcntl, "F_OFD_SETLK"):
            raise OSError("the kernels were not built, or this system has no locks of open files")
        self._kernels = kernels
        self._clock = clock
        self._file = _open(folder, kernels.penstock_board_bytes())
        try:
            self.number = self._take_number()
            self._map = mmap.mmap(self._file, kernels.penstock_board_bytes())
        except BaseException:
            os.close(self._file)
            raise
        self._board = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._slots = (SlotShape * SLOTS).from_buffer(self._map, HEADER_BYTES)
        kernels.penstock_take_slot(self._board, self.number, ctypes.byref(_described(work_class)))
        self.most = usable_cores()
        """The threads that it has when nobody else computes."""
        self.pauses = prompt_weight > 0.0 and itl_target_s > 0.0
        """Whether prompts weigh anything: else no step waits, and nobody need ask."""
        self._pacer = StepPacer(prompt_weight, clock, itl_target_s=itl_target_s)
        self._roused = False
        self._looked_s = clock.monotonic_s()
        self._looked_moves: dict[int, int] = {}

    def lead(self) -> None:
        """Make this process compute with the threads of this slot, from now on."""
        self._kernels.penstock_join(self._board, self.number)

    def begin_step(self) -> None:
        self.compute(now=True)
        self._pacer.begin_step()

    def end_step(self) -> None:
        self._pacer.end_step()

    def compute(self, *, now: bool) -> None:
        """Say whether this process has something to compute."""
        self._kernels.penstock_compute(self._board, self.number, now)
        if now and self._clock.monotonic_s() - self._looked_s >= LOOK_EVERY_S:
            self._looked_s = self._clock.monotonic_s()
            self.forget_lost()

    @property
    def threads(self) -> int:
        """Return how many its process may compute with now."""
        share: int = self._kernels.penstock_share(self._board, self.number)
        return min(share, self.most)

    @property
    def prompts(self) -> WaitingPrompts:
        """Return those of this host that would have the cores of this process while it does not compute."""
        found = PromptsShape()
        self._kernels.penstock_prompts(self._board, self.number, ctypes.byref(found))
        return WaitingPrompts(found.requests, found.moves)

    def serve(self, requests: int) -> None:
        """Say how many requests this process has, those that wait for it included. From any thread."""
        self._kernels.penstock_serve(self._board, self.number, requests)

    def pause(self, own: OwnRequests) -> bool:
        """Leave the cores to other prompts, before a step, for as long as that step can wait.

        False: it was roused before that.
        """
        while True:
            changes = self._kernels.penstock_changes(self._board)
            if self._roused:
                self._roused = False
                return False
            pause_s = self._pacer.pause_s(own, self.prompts)
            if not pause_s:
                return True
            self.compute(now=False)
            self._kernels.penstock_await_change(self._board, changes, int(1e9 * pause_s))

    def rouse(self) -> None:
        """End the pause, or the next one where there is none. From any thread."""
        self._roused = True
        self._kernels.penstock_change(self._board)

    def forget_lost(self) -> None:
        """Mark those as idle who are said to compute where the slot is empty, or has not moved since the last
        look: one that goes on says so with its next step."""
        moves: dict[int, int] = {}
        for number, slot in enumerate(self._slots):
            if not slot.computing or number == self.number:
                continue
            moves[number] = slot.moves
            left = self._lock(number)
            if left or self._looked_moves.get(number) == slot.moves:
                self._kernels.penstock_compute(self._board, number, False)
            if left:
                self._unlock(number)
        self._looked_moves = moves

    def close(self) -> None:
        """Leave. Not while this process computes."""
        self._kernels.penstock_join(None, 0)
        self._kernels.penstock_compute(self._board, self.number, False)
        self._unlock(self.number)  # closing alone does not: the mapping has the file open too
        os.close(self._file)

    def _take_number(self) -> int:
        for number in range(SLOTS):
            if self._lock(number):
                return number
        raise OSError(f"all {SLOTS} slots are taken")

    def _lock(self, number: int) -> bool:
        """False: somebody holds that slot."""
        try:
            fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, _range(fcntl.F_WRLCK, number))
        except (BlockingIOError, PermissionError):
            return False
        return True

    def _unlock(self, number: int) -> None:
        fcntl.fcntl(self._file, fcntl.F_OFD_SETLK, _range(fcntl.F_UNLCK, number))


def _open(folder: Path, size: int) -> int:
    """The board's file, made if it is not there: this user's own, and of no other."""
    path = folder / f"penstock-cores-{os.geteuid()}-{LAYOUT}"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    status = os.fstat(file)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        os.close(file)
        raise PermissionError(f"{path} is not a file of this user")
    try:  # zeros: all slots are empty. A full disk is told of now, not by SIGBUS
        os.posix_fallocate(file, 0, size)
    except OSError:
        os.close(file)
        raise
    return file


def _range(kind: int, number: int) -> bytes:
    """A `struct flock` over one slot."""
    slot = ctypes.sizeof(SlotShape)
    return struct.pack("hh4xqqi4x", kind, os.SEEK_SET, HEADER_BYTES + number * slot, slot, 0)


def _described(work_class: WorkClass) -> SlotShape:
    quota = cpu_quota()
    cpus = usable_cpus()
    slot = SlotShape(
        work_class=work_class,
        cores=len(cpus),
        limit=usable_cores(),
        process=os.getpid(),
        cgroup=0 if quota is None else quota.inode,
    )
    for cpu in cpus:
        slot.cpus[cpu % CPU_BITS // 64] |= 1 << cpu % 64
    return slot
