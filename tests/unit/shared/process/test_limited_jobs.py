"""Jobs in processes that can be killed: whatever one does ends it alone, in bounded time and memory."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import wait

import pytest

from shared.errors import Unavailable
from shared.process import limited_jobs
from shared.process.job_runner import MAX_FRAME_BYTES, take_frames
from shared.process.limited_jobs import JobEnd, LimitedJobs
from tests.support import keep_place
from tests.support.data import REPOSITORY
from tests.support.odd_jobs import MAX_RESULT_BYTES
from tests.support.wait import until

END_S = 60.0


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[LimitedJobs]:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))  # where the module of jobs is
    jobs = LimitedJobs("tests.support.odd_jobs")
    yield jobs
    jobs.close()


def run(jobs: LimitedJobs, payload: str) -> JobEnd:
    ending, _ = jobs.submit(payload.encode())
    return ending.result(END_S)


def test_a_job_returns_its_bytes_and_prints_nowhere(
    jobs: LimitedJobs, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(jobs, "echo hello") == JobEnd("done", b"hello")
    assert "hello" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("payload", "end"),
    [
        ("spin", "too long"),
        ("sleep", "too late"),
        ("allocate", "too much memory"),
        ("fail", "failed"),
        ("die", "too much memory"),
        ("abort", "too much memory"),
    ],
)
def test_whatever_a_job_does_ends_it_and_no_other(jobs: LimitedJobs, payload: str, end: str) -> None:
    hostile, _ = jobs.submit(payload.encode())
    assert run(jobs, "echo beside") == JobEnd("done", b"beside")
    assert hostile.result(END_S).end == end
    assert run(jobs, "echo after") == JobEnd("done", b"after")


async def test_a_job_that_is_not_quick_leaves_the_cores_to_others_unless_it_has_had_none(
    jobs: LimitedJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limited_jobs, "job_command", keep_place.job_command)
    pid = int(run(jobs, "pid").result)
    without, stop_without = jobs.submit(b"sleep")
    working, stop_working = jobs.submit(b"work")

    def of_its_children() -> list[int]:
        """Return those of its children, in the order in which they began."""
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [os.getpriority(os.PRIO_PROCESS, int(child)) for child in file.read().split()]

    await until(lambda: keep_place.STANDING_BACK_NICE in of_its_children())
    first, second = of_its_children()
    assert first < second == keep_place.STANDING_BACK_NICE
    stop_without()
    stop_working()
    assert {without.result(END_S).end, working.result(END_S).end} == {"killed"}


def test_an_error_is_told(jobs: LimitedJobs) -> None:
    assert run(jobs, "fail") == JobEnd("failed", b"it failed")


def test_a_result_comes_whole_up_to_its_limit(jobs: LimitedJobs) -> None:
    longest = run(jobs, f"zeros {MAX_RESULT_BYTES}")
    assert (longest.end, len(longest.result)) == ("done", MAX_RESULT_BYTES)
    assert run(jobs, f"zeros {MAX_RESULT_BYTES + 1}") == JobEnd("too much memory", b"")


def test_a_job_is_stopped_when_nobody_waits_for_it(jobs: LimitedJobs) -> None:
    ending, stop = jobs.submit(b"sleep")
    assert run(jobs, "echo begun").end == "done"
    stop()
    assert ending.result(END_S).end == "killed"
    stop()  # once more changes nothing


def test_many_jobs_end_beside_each_other(jobs: LimitedJobs) -> None:
    endings = {number: jobs.submit(f"echo {number}".encode())[0] for number in range(30)}
    assert [ending.result(END_S).result for ending in endings.values()] == [
        str(number).encode() for number in endings
    ]


async def test_a_process_that_dies_fails_what_it_has_and_comes_back(jobs: LimitedJobs) -> None:
    pid = int(run(jobs, "pid").result)
    ending, _ = jobs.submit(b"sleep")
    assert run(jobs, "echo begun").end == "done"  # so that the job outlives it
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(Unavailable):
        ending.result(END_S)

    def is_back() -> bool:
        try:
            return run(jobs, "echo again") == JobEnd("done", b"again")
        except Unavailable:  # its end is not known yet
            return False

    await until(is_back)


def test_closing_ends_the_jobs_that_run(jobs: LimitedJobs) -> None:
    ending, _ = jobs.submit(b"sleep")
    assert run(jobs, "echo begun").end == "done"
    jobs.close()
    assert not wait([ending], END_S).not_done
    with pytest.raises(Unavailable):
        jobs.submit(b"echo late")


def test_frames_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="over the limit"):
        take_frames(bytearray((MAX_FRAME_BYTES + 1).to_bytes(4, "big")))
    partial = bytearray(b"\0\0")
    assert (take_frames(partial), partial) == ([], bytearray(b"\0\0"))
