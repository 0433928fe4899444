"""How commands end when somebody presses Ctrl-C or closes the pipe that reads them: quietly, at every moment.

Moments come from Python itself: with -X importtime it says on stderr what it has just imported. Where that is
no matter, programs begin with their imports done.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from shared.messages import Held
from shared.retrieval.index.build import LOCK_NAME, index_folder
from shared.retrieval.index.manifest import read_pointer
from shared.text.model_source import DEMO_MODEL
from tests.integration.fleet_players import Play
from tests.support.data import REPOSITORY
from tests.support.fresh_programs import fresh_programs
from tests.support.hub import running_hub
from tests.support.models import target_model
from tests.support.scripted_server import Asked, Scripted, scripted_server, told_story
from tests.support.wait import until

TIMEOUT_S = 100
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
"""The buffering that users have: argparse overlooks what fails in its own writing."""
IMPORT_LINE = b"import time:"


def command(*argv: str, python: Sequence[str] = ()) -> list[str]:
    return [sys.executable, *python, "-m", "services.cli", *argv]


class Running:
    """A command in a process group of its own, as a shell starts it."""

    def __init__(
        self, arguments: Sequence[str], folder: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> None:
        self.process = subprocess.Popen(
            arguments,
            cwd=folder or REPOSITORY,
            env={**BUFFERED, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def until_stderr(self, words: bytes) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if words in line:
                return
        raise AssertionError(f"{words!r} never came")

    def until_stdout(self, words: bytes) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if words in line:
                return
        raise AssertionError(f"{words!r} never came")

    def press_ctrl_c(self) -> tuple[int, str]:
        """The exit code and what it still said on stderr, but for the lines of -X importtime."""
        os.killpg(self.process.pid, signal.SIGINT)
        _, err = self.process.communicate(timeout=TIMEOUT_S)
        rest = b"".join(line for line in err.splitlines(keepends=True) if not line.startswith(IMPORT_LINE))
        return self.process.returncode, rest.decode()


LOADING = [
    (("ask", "hi", "--grpc", "127.0.0.1:1"), "grpc._cython"),
    (("ask", "hi", "--grpc", "127.0.0.1:1"), "services.cli.ask.ask_request"),
    (("chat", "--grpc", "127.0.0.1:1"), "services.cli.ask.chat_session"),
    (("status", "--watch"), "shared.bus.subjects"),
    (("audit", "--wait", "90"), "services.cli.fleet.fleet_watch"),
    (("drain", "decode-0"), "services.cli.fleet.fleet_watch"),
    (("bench", "engine", "--model", "nowhere"), "services.cli.view.table"),
    (("index", "."), "services.cli.local.index_progress"),
    (("index", "."), "torch._C"),
    (("keys", "new", "--tenant", "a", "--file", "keys.toml"), "shared.files.api_key_file"),
]
"""The line that is typed, and the import during which Ctrl-C is pressed."""


@pytest.mark.thorough(but="argv1-services.cli.ask.ask_request | argv7-services.cli.local.index_progress")
@pytest.mark.parametrize(("argv", "module"), LOADING)
def test_ctrl_c_while_a_command_loads_is_quiet(argv: tuple[str, ...], module: str, tmp_path: Path) -> None:
    running = Running(command(*argv, python=("-X", "importtime")), tmp_path)
    running.until_stderr(module.encode() + b"\n")
    code, err = running.press_ctrl_c()
    assert "Traceback" not in err
    assert "KeyboardInterrupt" not in err
    # The others: it was faster than Ctrl-C, or so far that the signal itself ends it.
    assert code in (130, 0, 1, 2, -signal.SIGINT)


@pytest.mark.thorough(but="services.launcher.options")
@pytest.mark.parametrize("module", ["services.launcher.options", "services.launcher.stack"])
def test_ctrl_c_while_the_launcher_loads_is_quiet(module: str, tmp_path: Path) -> None:
    python = [sys.executable, "-X", "importtime", "-P", "-m", "services.launcher"]
    running = Running([*python, "--state-dir", str(tmp_path), "--grpc-port", "0"], tmp_path)
    running.until_stderr(module.encode() + b"\n")
    code, err = running.press_ctrl_c()
    assert "Traceback" not in err
    assert code in (130, -signal.SIGINT)  # the latter before there is anything to catch it


@pytest.mark.thorough
def test_ctrl_c_ends_the_demo_and_its_stack_in_order(tmp_path: Path) -> None:
    running = Running([sys.executable, "-P", "-m", "services.launcher.demo"], tmp_path)
    running.until_stderr(b"starting 7 services")
    code, err = running.press_ctrl_c()
    assert code == 130
    assert "SIGINT: stopping" in err
    assert "again" not in err
    assert "Traceback" not in err


def test_ctrl_c_while_a_model_is_fetched_ends_the_launcher_at_once(tmp_path: Path) -> None:
    with running_hub("org/tiny", DEMO_MODEL, held=("model.safetensors",)) as hub:
        environ = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hub")}
        python = [sys.executable, "-P", "-m", "services.launcher", "--model", "org/tiny"]
        running = Running([*python, "--state-dir", str(tmp_path / "state")], tmp_path, environ)
        running.until_stderr(b"fetching org/tiny from the hub")
        assert hub.half_sent.wait(TIMEOUT_S)
        code, err = running.press_ctrl_c()
        assert (code, "Traceback" in err) == (130, False)
        assert not hub.go_on.is_set()


SERVICES_LOADING = [
    ("decode", "services.decode.actor"),
    ("prefill", "torch._C"),
    ("retriever", "structlog"),
    ("gateway", "grpc._cython"),
    ("tokenizer", "shared.bus"),
    ("speculator", "asyncio"),
    ("detokenizer", "shared.bus"),
]
"""A service that is started by hand, and the import during which Ctrl-C is pressed."""


@pytest.mark.thorough(but="gateway-grpc._cython | retriever-structlog")
@pytest.mark.parametrize(("role", "module"), SERVICES_LOADING)
def test_ctrl_c_while_a_service_loads_is_quiet(role: str, module: str, tmp_path: Path) -> None:
    python = [sys.executable, "-X", "importtime", "-P", "-m", f"services.{role}"]
    running = Running(python, tmp_path)
    running.until_stderr(module.encode() + b"\n")
    code, err = running.press_ctrl_c()
    assert "Traceback" not in err
    assert "KeyboardInterrupt" not in err
    # Or it was faster than Ctrl-C, and drains or has found no bus.
    assert code in (130, 0, 1)


def a_tokenizer(nats_url: str, folder: Path) -> Running:
    environ = {"PENSTOCK_NATS_URL": nats_url, "PENSTOCK_FLEET_KEY": "ab" * 32}
    return Running([sys.executable, "-P", "-m", "services.tokenizer"], folder, environ)


def test_ctrl_c_while_a_service_looks_for_its_bus_is_quiet(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        mute.settimeout(TIMEOUT_S)
        running = a_tokenizer(f"nats://127.0.0.1:{mute.getsockname()[1]}", tmp_path)
        waiting, _ = mute.accept()
        with waiting:
            code, err = running.press_ctrl_c()
    assert code == 0
    assert "Traceback" not in err


def test_ctrl_c_drains_a_service_that_is_ready(nats_url: str, tmp_path: Path) -> None:
    running = a_tokenizer(nats_url, tmp_path)
    running.until_stderr(b'"event": "ready"')
    code, err = running.press_ctrl_c()
    assert code == 0
    assert "draining" in err
    assert "Traceback" not in err


def test_a_launcher_whose_ready_line_nobody_reads_goes_on(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from services.launcher.__main__ import _announce\n"
        "_announce('ready')\n"
        "print('still here', file=sys.stderr)\n"
    )
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=write,
            stderr=subprocess.PIPE,
            cwd=REPOSITORY,
            timeout=TIMEOUT_S,
            check=False,
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, b"still here\n")


async def test_ctrl_c_ends_a_watched_status(nats_url: str, play: Play) -> None:
    await play("decode")
    running = Running(command("status", "--watch", "--nats-url", nats_url))
    await asyncio.to_thread(running.until_stdout, b"decode-0")
    assert await asyncio.to_thread(running.press_ctrl_c) == (130, "")


async def test_ctrl_c_ends_a_waiting_audit(nats_url: str, play: Play) -> None:
    decode = await play("decode", Held("g.1", "kv_blocks", 4, "decoding"))
    running = Running(command("audit", "--wait", "90", "--nats-url", nats_url))
    await until(lambda: decode.asked, timeout_s=TIMEOUT_S)
    assert await asyncio.to_thread(running.press_ctrl_c) == (130, "")


async def test_ctrl_c_ends_a_waiting_drain(nats_url: str, play: Play) -> None:
    await play("decode")
    running = Running(command("drain", "decode-0", "--yes", "--nats-url", nats_url))
    await asyncio.to_thread(running.until_stdout, b"decode-0 drains")
    assert await asyncio.to_thread(running.press_ctrl_c) == (130, "")


@pytest.mark.thorough
def test_ctrl_c_ends_an_indexing_and_leaves_no_half_index(tmp_path: Path) -> None:
    corpus, state = tmp_path / "corpus", tmp_path / "state"
    corpus.mkdir()
    for number in range(40):
        sections = (f"# Part {part}\nSentence {number} of part {part} is here.\n" for part in range(60))
        (corpus / f"{number}.md").write_text("\n".join(sections))
    argv = ("index", str(corpus), "--state-dir", str(state))
    running = Running(command(*argv))
    running.until_stderr(b" passages")
    code, err = running.press_ctrl_c()
    assert (code, "Traceback" in err) == (130, False)
    assert err.endswith("is kept, and the same command goes on from there\n")
    (folder,) = state.iterdir()
    assert read_pointer(folder) is None


def test_ctrl_c_ends_an_indexing_that_waits_for_another(tmp_path: Path) -> None:
    corpus, state = tmp_path / "corpus", tmp_path / "state"
    corpus.mkdir()
    folder = index_folder(state, str(corpus))
    folder.mkdir(parents=True)
    with (folder / LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4711")
        lock.flush()
        running = Running(command("index", str(corpus), "--state-dir", str(state)))
        running.until_stderr(b"process 4711 indexes this folder already: waiting until it has")
        assert running.press_ctrl_c() == (130, "")


async def test_ctrl_c_ends_a_benchmark_and_the_process_that_it_measures(tmp_path: Path) -> None:
    model = target_model(tmp_path)
    argv = ("bench", "engine", "--model", str(model), "--prompt-tokens", "200", "--output-tokens", "100")
    running = Running(command(*argv, "--repeats", "1000", "--threads", "1"))
    await until(lambda: children_of(running.process.pid), timeout_s=TIMEOUT_S)
    (measuring,) = children_of(running.process.pid)
    assert await asyncio.to_thread(running.press_ctrl_c) == (130, "")
    await until(lambda: not is_running(measuring))


HANGS = 3600.0


@pytest.mark.thorough(but="alone | sweep")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--concurrency", "1"), "the load was cut by Ctrl-C: 1 calls had not ended, and are in no figure"),
        (
            ("--concurrency", "2", "--processes", "2"),
            "the load was cut by Ctrl-C: 2 calls had not ended, and are in no figure",
        ),
        (
            ("--sweep", "1000-4000x2", "--requests", "2"),
            "the sweep was cut by Ctrl-C at 2e+03 requests/s: 2 calls had not ended, and are in no figure",
        ),
    ],
    ids=["alone", "processes", "sweep"],
)
async def test_ctrl_c_cuts_a_load_which_is_reported_up_to_there(
    options: Sequence[str], said: str, tmp_path: Path
) -> None:
    """Two calls find out what the server is; two more are answered, and those behind them do not end."""
    asked: list[Asked] = []

    def answer(one: Asked) -> Scripted:
        if one.path == "/v1/models":
            return Scripted(body={"data": [{"id": "scripted"}]})
        asked.append(one)
        return told_story(2, 0.0, HANGS if len(asked) > 4 else 0.0)

    many = 5 if "1" in options[:2] else 6
    async with scripted_server(answer) as server:
        argv = ("bench", "serve", "--url", server.url, "--duration", "3600", *options)
        running = Running(command(*argv, "--json", str(tmp_path / "cut.json")))
        await until(lambda: len(asked) == many, timeout_s=TIMEOUT_S)
        os.killpg(running.process.pid, signal.SIGINT)
        out, err = await asyncio.to_thread(running.process.communicate, timeout=TIMEOUT_S)
    assert running.process.returncode == 130
    assert "Traceback" not in err.decode()
    assert f"warning: {said}" in out.decode()
    assert out.decode().count("\n2 calls in ") == 1
    described = json.loads((tmp_path / "cut.json").read_text())
    assert described["cut_calls"] == many - 4
    assert described["summary"]["calls"] == 2


async def test_ctrl_c_before_a_load_begins_reports_nothing(tmp_path: Path) -> None:
    async with scripted_server(lambda _: told_story(2, HANGS, 0.0)) as server:
        argv = ("bench", "serve", "--url", server.url, "--model", "scripted")
        running = Running(command(*argv, "--json", str(tmp_path / "cut.json")))
        await until(lambda: server.asked, timeout_s=TIMEOUT_S)
        assert await asyncio.to_thread(running.press_ctrl_c) == (130, "")
    assert not (tmp_path / "cut.json").exists()


def children_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def is_running(pid: str) -> bool:
    """Not once it has been killed, whoever is still to notice."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


SHORT = [
    ("--help",),
    ("--version",),
    ("ask", "--help"),
    ("chat", "--help"),
    ("status", "--help"),
    ("keys", "--help"),
    ("completion", "bash"),
    ("up", "--help"),
]


def with_closed_stdout(*argv: str, folder: Path = REPOSITORY) -> tuple[int, str]:
    """Exit code and stderr of a command whose reader has left before its first word."""
    read, write = os.pipe()
    os.close(read)
    try:
        with fresh_programs():  # what Python does at its end is part of this
            done = subprocess.run(
                command(*argv),
                cwd=folder,
                env={**BUFFERED, "PYTHONPATH": str(REPOSITORY)},
                stdout=write,
                stderr=subprocess.PIPE,
                timeout=TIMEOUT_S,
                check=False,
            )
    finally:
        os.close(write)
    return done.returncode, done.stderr.decode()


@pytest.mark.thorough(but="--help | keys --help")
@pytest.mark.parametrize("argv", SHORT, ids=" ".join)
def test_a_closed_pipe_ends_a_command_quietly(argv: tuple[str, ...], tmp_path: Path) -> None:
    code, err = with_closed_stdout(*argv, folder=tmp_path)
    assert (code, err) == (141, "")


@pytest.mark.thorough(but="argv2")
@pytest.mark.parametrize(
    "argv", [("status",), ("status", "--watch"), ("audit",), ("drain", "decode-0", "--yes")]
)
async def test_a_closed_pipe_ends_a_command_on_the_bus_quietly(
    argv: tuple[str, ...], nats_url: str, play: Play
) -> None:
    await play("decode")
    ended = await asyncio.to_thread(with_closed_stdout, *argv, "--nats-url", nats_url)
    assert ended == (141, "")


def test_a_command_that_was_started_without_stdout_says_nothing_of_it() -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m services.cli --help >&-"],
        cwd=REPOSITORY,
        stderr=subprocess.PIPE,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
