"""`penstock status`, `audit` and `index` as processes; the instances they find are played on a real bus."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from services.launcher.state import STACK_NAME, RunningInstance, StackState, StateDir
from shared.messages import Held
from tests.integration.fleet_players import Play, PlayedInstance
from tests.support.closed_bus import closed_bus
from tests.support.ended_program import ended_program
from tests.support.launcher_lock import held_lock
from tests.support.patched import IMPATIENT, patched
from tests.support.screen import Screen
from tests.support.terminal import CTRL_C, Terminal
from tests.support.wait import until

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 110


async def penstock(*argv: str, program: Sequence[str] = ("services.cli",)) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *program,
        *argv,
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    return await ended_program(process)


BLOCKS = Held("g.1", "kv_blocks", 4, "decoding")
SESSION = Held("g.1", "session", 1, "decoding")


async def test_the_bus_may_be_named_by_the_environment(
    nats_url: str, play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    await play("gateway")
    monkeypatch.setenv("PENSTOCK_NATS_URL", nats_url)
    code, out, _ = await penstock("status")
    assert code == 0
    assert "gateway-0" in out


async def test_status_lists_every_instance(nats_url: str, play: Play) -> None:
    await play("gateway")
    await play("decode")
    code, out, err = await penstock("status", "--nats-url", nats_url)
    assert (code, err) == (0, "")
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [
        ["decode", "decode-0"],
        ["gateway", "gateway-0"],
    ]
    code, out, _ = await penstock("status", "--json", "--nats-url", nats_url)
    rows = json.loads(out)["instances"]
    assert [(row["id"], row["live"], row["kv_blocks_free"]) for row in rows] == [
        ("decode-0", 2, 60),
        ("gateway-0", 2, 60),
    ]


@pytest.mark.thorough(but="40")
@pytest.mark.parametrize("columns", [80, 40])
async def test_a_status_fits_the_terminal_and_marks_what_it_cuts(
    nats_url: str, play: Play, columns: int
) -> None:
    await play("gateway")
    await play("decode")
    command = (sys.executable, "-m", "services.cli", "status", "--nats-url", nats_url)
    with Terminal(command, columns=columns) as terminal:
        assert await asyncio.to_thread(terminal.end) == 0
    head, *rows = terminal.shown.splitlines()
    assert head.split()[:3] == ["role", "instance", "state"]
    assert all(len(line) < columns for line in (head, *rows))
    assert head.endswith("…") is (columns == 40)
    assert "stalled s" not in head


async def test_a_watched_status_stays_in_its_place_on_a_terminal(nats_url: str, play: Play) -> None:
    await play("gateway")
    await play("decode")
    command = (sys.executable, "-m", "services.cli", "status", "--watch", "--nats-url", nats_url)
    with Terminal(command, columns=60, rows=10) as terminal:
        await asyncio.to_thread(terminal.until, "\x1b[3F")  # over head and two rows, to show them anew
        shown = await asyncio.to_thread(terminal.until, "gateway-0")
        terminal.enter(CTRL_C)
        assert await asyncio.to_thread(terminal.end) == 130
    assert max(len(line) for line in terminal.shown.replace("\x1b[K", "").splitlines()[:3]) == 59
    assert shown.startswith("role")


async def test_a_watched_status_in_a_pipe_is_one_table_after_another(nats_url: str, play: Play) -> None:
    await play("decode")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", "status", "--watch", "--nats-url", nats_url),
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(TIMEOUT_S):
        lines = [(await process.stdout.readline()).decode() for _ in range(4)]
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130
    assert [line.split()[0] for line in lines] == ["role", "decode", "role", "decode"]


async def test_status_and_audit_of_an_empty_bus_exit_with_1(nats_url: str) -> None:
    ends = await asyncio.gather(
        *(penstock(command, "--nats-url", nats_url) for command in ("status", "audit"))
    )
    said = "no instance is heard on this bus; is the stack running?\n"
    assert [(code, out) for code, out, _ in ends] == [(1, said), (1, said)]


async def test_a_bus_that_is_not_there_is_a_sentence() -> None:
    program = patched("services.cli", IMPATIENT)
    code, _, err = await penstock("status", "--nats-url", "nats://127.0.0.1:1", program=program)
    assert code == 1
    assert err.startswith("penstock status: ")
    assert "127.0.0.1:1" in err


@pytest.mark.parametrize("credentials", ["operator", ""])
async def test_a_closed_bus_of_the_user_is_read_with_the_credentials_of_the_environment(
    credentials: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with closed_bus() as closed, closed.bus("decode-0") as bus:
        if credentials:
            closed.credentials(credentials).write(tmp_path / "f.toml")
            monkeypatch.setenv("PENSTOCK_NATS_CREDENTIALS", str(tmp_path / "f.toml"))
        decode = asyncio.create_task(PlayedInstance(bus, "decode").run())
        try:
            code, out, err = await penstock("audit", "--nats-url", closed.url)
        finally:
            decode.cancel()
            await asyncio.gather(decode, return_exceptions=True)
    if credentials:
        assert (code, out) == (0, "1 instances hold 0 things for 0 live requests\n")
    else:
        assert (code, out) == (1, "")
        assert "Authorization Violation" in err


async def test_audit_of_an_idle_fleet_is_clean(nats_url: str, play: Play) -> None:
    await play("gateway")
    await play("decode")
    code, out, _ = await penstock("audit", "--nats-url", nats_url)
    assert (code, out) == (0, "2 instances hold 0 things for 0 live requests\n")


async def test_audit_shows_what_is_held_and_exits_with_1_when_no_request_is_live(
    nats_url: str, play: Play
) -> None:
    gateway = await play("gateway")
    await play("decode", BLOCKS)
    code, out, _ = await penstock("audit", "--json", "--nats-url", nats_url)
    audit = json.loads(out)
    assert (code, audit["clean"], audit["live_requests"], audit["silent"]) == (1, False, 0, [])
    assert audit["instances"][0]["held"] == [
        {"request_id": "g.1", "kind": "kv_blocks", "count": 4, "phase": "decoding"}
    ]
    gateway.held = (SESSION,)
    code, out, _ = await penstock("audit", "--nats-url", nats_url)
    assert code == 0
    assert out.splitlines()[1].split() == ["g.1", "decode", "decode-0", "kv_blocks", "4", "decoding"]


async def test_audit_names_an_instance_that_does_not_answer(nats_url: str, play: Play) -> None:
    await play("gateway")
    await play("decode", answers=False)
    code, out, _ = await penstock("audit", "--nats-url", nats_url)
    assert code == 1
    assert "decode-0 does not answer:" in out


async def test_audit_waits_until_nothing_is_held(nats_url: str, play: Play) -> None:
    await play("gateway")
    decode = await play("decode", BLOCKS)
    waiting = asyncio.create_task(penstock("audit", "--wait", "50", "--nats-url", nats_url))
    await until(lambda: decode.asked >= 2, timeout_s=TIMEOUT_S)
    decode.held = ()
    code, out, _ = await waiting
    assert (code, out) == (0, "2 instances hold 0 things for 0 live requests\n")


async def test_index_builds_and_tells_where(tmp_path: Path) -> None:
    corpus, state = tmp_path / "corpus", tmp_path / "state"
    corpus.mkdir()
    (corpus / "a.md").write_text("# A\nOne sentence.\n\n# B\nAnother one.\n")
    (corpus / "b.txt").write_bytes(b"\xff")
    code, out, err = await penstock("index", str(corpus), "--state-dir", str(state))
    assert code == 0, err
    (folder,) = state.iterdir()
    assert out == f"1 files, 2 passages (2 new) in {folder}\n"
    assert "embedding 2/2" in err
    assert "skipped b.txt: it is not UTF-8 text" in err


@pytest.mark.thorough
def test_on_a_terminal_one_line_grows_while_an_index_is_made(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number in range(60):
        (corpus / f"{number}.md").write_text(f"# Page {number}\n" + f"Sentence of page {number}. " * 20)
    command = (sys.executable, "-m", "services.cli", "index", str(corpus))
    with Terminal((*command, "--state-dir", str(tmp_path / "state")), columns=200) as terminal:
        assert terminal.end() == 0
    screen = Screen(columns=200)
    screen.write(terminal.shown)
    lines = screen.text.splitlines()
    assert "\rreading [....................] 0/60 files" in terminal.shown
    assert [line.split()[0] for line in lines] == ["loading", "reading", "embedding", "60"]
    assert lines[2] == f"embedding [{'#' * 20}] 60/60 passages"


async def test_the_last_of_a_role_is_not_drained_by_a_script_that_did_not_say_so(
    nats_url: str, play: Play
) -> None:
    await play("decode")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "services.cli", "drain", "decode-0", "--nats-url", nats_url),
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    ended = await ended_program(process)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err == (
        "penstock drain: decode-0 is the last decode that is ready: requests that need one wait or fail "
        "until another is; pass --yes to drain it all the same\n"
    )


async def test_a_restarted_instance_is_waited_for_until_it_is_ready_again(nats_url: str, play: Play) -> None:
    decode = await play("decode")
    decode.after_drain = "loading"
    restarting = asyncio.create_task(penstock("restart", "decode-0", "--yes", "--nats-url", nats_url))
    await until(lambda: decode.state == "loading", timeout_s=TIMEOUT_S)
    assert not restarting.done()
    decode.state = "ready"
    code, out, err = await restarting
    assert (code, err) == (0, "")
    first, *_, last = out.splitlines()
    assert first == "decode-0 drains; it holds 2"
    assert re.fullmatch(r"decode-0 is ready again after [\d.]+ s, as process 7", last)


@pytest.mark.parametrize(
    ("after_drain", "said"),
    [
        ("", "decode-0 has not ended after 0.5 s and goes on draining"),
        (
            "loading",
            "decode-0 has ended and is not ready again after 0.5 s, it is loading; `penstock logs decode-0` "
            "shows what it says",
        ),
        ("stopped", "decode-0 has ended, and nobody has started it again after 0.5 s"),
    ],
)
async def test_a_restart_that_takes_too_long_says_how_far_it_is(
    nats_url: str, play: Play, after_drain: str, said: str
) -> None:
    decode = await play("decode")
    decode.after_drain = after_drain
    code, out, _ = await penstock("restart", "decode", "--yes", "--timeout", "0.5", "--nats-url", nats_url)
    assert (code, out.splitlines()[-1]) == (3, said)


async def test_what_is_not_there_is_not_restarted(nats_url: str, play: Play) -> None:
    await play("decode")
    code, out, _ = await penstock("restart", "prefill", "--nats-url", nats_url)
    assert code == 1
    assert out == "no instance or role 'prefill' is heard on this bus; there is decode-0\n"


async def test_who_does_not_answer_is_not_restarted(nats_url: str, play: Play) -> None:
    await play("decode", answers=False)
    quickly = ("--yes", "--kill-after", "0.2")
    code, _, err = await penstock("restart", "decode-0", *quickly, "--nats-url", nats_url)
    assert code == 1
    assert err == (
        "penstock restart: decode-0 does not answer, and its process is not one of a stack here; end it "
        "where it runs\n"
    )


@pytest.fixture
def stopped(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of the launcher that this process is, and SIGSTOP has stopped."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        process.send_signal(signal.SIGSTOP)
        yield process
        process.kill()


async def test_who_hangs_in_its_drain_is_killed_and_waited_for(
    nats_url: str, play: Play, tmp_path: Path, stopped: subprocess.Popen[bytes]
) -> None:
    decode = await play("decode")
    decode.pid, decode.is_silent_after_drain = stopped.pid, True
    state_dir = StateDir(tmp_path / "state")
    state_dir.acquire()
    rows = (RunningInstance("decode", "decode-0", stopped.pid, "h:1"),)
    state_dir.write(StackState("h:2", "h:3", nats_url, None, rows))
    options = ("--yes", "--kill-after", "0.5", "--state-dir", str(state_dir.path))
    restarting = asyncio.create_task(penstock("restart", "decode", *options))
    assert await asyncio.to_thread(stopped.wait, TIMEOUT_S) == -signal.SIGKILL
    decode.incarnation, decode.pid, decode.is_silent = 2, 8, False
    code, out, err = await restarting
    state_dir.release()
    assert (code, err) == (0, "")
    drains, hangs, ended, again = out.splitlines()
    assert drains == "decode-0 drains; it holds 2"
    assert hangs == (
        f"decode-0 hangs: it has said nothing for 0.5 s; its process {stopped.pid} is killed (SIGKILL)"
    )
    assert re.fullmatch(r"decode-0 has ended after [\d.]+ s; it is started again …", ended)
    assert re.fullmatch(r"decode-0 is ready again after [\d.]+ s, as process 8", again)


async def test_a_process_that_is_not_the_launcher_s_is_never_killed(
    nats_url: str, play: Play, tmp_path: Path, stopped: subprocess.Popen[bytes]
) -> None:
    """A number that stack.json has kept may be any other's by now."""
    decode = await play("decode", answers=False)
    decode.pid = stopped.pid
    state_dir = tmp_path / "state"
    state_dir.mkdir()
    rows = (RunningInstance("decode", "decode-0", stopped.pid, "h:1"),)
    described = asdict(StackState("h:2", "h:3", nats_url, None, rows))
    (state_dir / STACK_NAME).write_text(json.dumps(described))
    options = ("--yes", "--kill-after", "0.2", "--state-dir", str(state_dir))
    with held_lock(state_dir, os.getppid()):
        code, _, err = await penstock("restart", "decode", *options)
    assert code == 1
    assert "its process is not one of a stack here" in err
    assert stopped.poll() is None


async def test_on_a_terminal_the_last_of_a_role_is_restarted_after_a_yes_alone(
    nats_url: str, play: Play
) -> None:
    decode = await play("decode")
    decode.after_drain = "ready"
    command = (sys.executable, "-m", "services.cli", "restart", "decode", "--nats-url", nats_url)
    for answer, code in (("n", 1), ("y", 0)):
        with Terminal(command, columns=200) as terminal:
            await asyncio.to_thread(terminal.until, "Restart it all the same? [y/N] ")
            terminal.enter(f"{answer}\n")
            assert await asyncio.to_thread(terminal.end) == code
        assert decode.incarnation == 2 - code
    assert "decode-0 is ready again after" in terminal.shown


@pytest.mark.thorough
async def test_on_a_terminal_the_last_of_a_role_is_drained_after_a_yes_alone(
    nats_url: str, play: Play
) -> None:
    await play("decode")
    command = (sys.executable, "-m", "services.cli", "drain", "decode-0", "--nats-url", nats_url)
    with Terminal(command, columns=200) as terminal:
        await asyncio.to_thread(terminal.until, "Drain it all the same? [y/N] ")
        terminal.enter("\n")
        assert await asyncio.to_thread(terminal.end) == 1
    assert "decode-0 goes on as it was" in terminal.shown
    with Terminal(command, columns=200) as terminal:
        await asyncio.to_thread(terminal.until, "Drain it all the same? [y/N] ")
        terminal.enter("y\n")
        await asyncio.to_thread(terminal.until, "decode-0 drains; it holds 2")
