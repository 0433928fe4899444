"""Programs that tests start begin where their imports end: forked from a process that has these.

`penstock` imports for half a second, what computes for two, a stack for three, and tests start hundreds. A
worker of `pytest -n` is forked from a process that has imported all that we serve, and forks another one
before it has a second thread: that becomes our programs, as `become_program` says. What asks for something
that counts while modules are imported is started as it is, and so are all programs where tests run in one
process.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from services.cli.__main__ import MODULES as COMMANDS
from services.launcher.processes.child import die_with
from services.launcher.processes.fork_server import MAX_REQUEST_BYTES, _fork_twice
from services.launcher.processes.forker import MAX_ANSWER_BYTES, adopting
from shared.roles import ROLES
from tests.support.become_program import Program, become
from tests.support.data import REPOSITORY
from tests.support.fresh_programs import FORKABLE, START
from tests.support.launched import DRIVER_NAME

ANSWER_TIMEOUT_S = 120.0
PACKAGES = (
    *("services.cli", "services.launcher", *(f"services.{role}" for role in ROLES)),
    *("shared.engine.measuring", "shared.engine.tensor_parallel", "tests.support.patched"),
)
"""The packages whose programs are forked. Services of a stack are forked by their launcher."""
SCRIPTS = (DRIVER_NAME, FORKABLE, "penstock_runner.py")
"""The files that are such programs, too, wherever they are."""
PROGRAMS = (
    *("services.launcher.__main__", "services.launcher.config_report"),
    *(f"services.cli.{module}" for module in COMMANDS.values()),
    *(f"services.{role}.__main__" for role in ROLES),
    *("shared.engine.measuring.benchmark", "shared.engine.tensor_parallel.worker"),
)
"""What programs import, and tests may not."""
AT_IMPORT = (
    *("LD_", "LC_", "LANG", "MALLOC_", "OMP_", "OPENBLAS_", "PYTHON", "TORCH_", "TRITON_", "PENSTOCK_CPU_"),
    "TRANSFORMERS_",
)
"""What variables begin with that count while modules are imported."""
NOT_AT_IMPORT = {"PYTHONPATH", "PYTHONUNBUFFERED"}
IMPORTED_UNDER = os.environ.copy()
"""The variables of the process when it had imported what it becomes."""
IGNORABLE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


class ReadyProcess:
    """The process that becomes our programs, as its parent sees it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._turn = threading.Lock()
        die = die_with(os.getpid())
        if os.fork() == 0:
            self._socket.close()
            die()
            _serve(theirs)
        theirs.close()
        self._socket.settimeout(ANSWER_TIMEOUT_S)

    def start(self, program: Program, descriptors: Sequence[int]) -> int:
        """Return the pid of a child of ours that runs `program` with these descriptors as 0, 1 and 2.

        The fourth one is a pipe that it closes once it is as exec would have it.
        """
        go, leave = os.pipe()
        try:
            with self._turn, adopting():
                socket.send_fds(self._socket, [program.packed()], [*descriptors, go])
                pid = int(self._socket.recv(MAX_ANSWER_BYTES))
            os.write(leave, b"\n")  # it is our child now, and may end
        finally:
            os.close(go)
            os.close(leave)
        return pid


def start_programs_ready() -> None:
    """Let this process, which has one thread yet, start programs so from now on."""
    ready = ReadyProcess()

    def start(*asked: Any) -> int:
        words = [os.fsdecode(word) for word in asked[0]]
        if not is_plain(*asked) or not is_ready(words, environ := _environ_of(asked[5])):
            return START(*asked)
        folder = os.getcwd() if asked[4] is None else os.fsdecode(asked[4])
        ignored = [int(each) for each in IGNORABLE if signal.getsignal(each) is signal.SIG_IGN]
        new_session, group = asked[15:17]
        program = Program(words[1:], environ, folder, ignored, bool(new_session), int(group))
        streams = [ours if each == -1 else each for ours, each in enumerate((asked[6], asked[9], asked[11]))]
        return ready.start(program, [*streams, asked[13]])

    subprocess._fork_exec = start  # type: ignore[attr-defined]


def is_plain(*asked: Any) -> bool:
    """Return whether these arguments of `_fork_exec` give a child three streams, our user and no more."""
    close_fds, keep, error_pipe = asked[2], asked[3], asked[13]
    gid, gids, uid, umask, before = asked[17:22]
    return bool(close_fds and keep == (error_pipe,) and (gid, gids, uid, before) == (None,) * 4 and umask < 0)


def is_ready(words: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Return whether a forked process is what this command line would start."""
    if words[0] != sys.executable or sum(map(len, (*words, *environ.values()))) > MAX_REQUEST_BYTES // 2:
        return False
    counting = {name for name in environ.keys() | IMPORTED_UNDER.keys() if name.startswith(AT_IMPORT)}
    if any(environ.get(name) != IMPORTED_UNDER.get(name) for name in counting - NOT_AT_IMPORT):
        return False
    places = [Path(place) for place in environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    if any(place != REPOSITORY and (place / "services").exists() for place in places):
        return False
    module = "".join(words[2:3] if words[1:2] == ["-m"] else words[3:4] if words[1:3] == ["-P", "-m"] else [])
    is_script = Path(*words[1:2]).name in SCRIPTS
    return is_script or any(module == each or module.startswith(f"{each}.") for each in PACKAGES)


def _environ_of(lines: Sequence[bytes] | None) -> dict[str, str]:
    if lines is None:
        return os.environ.copy()
    pairs = (os.fsdecode(line).partition("=") for line in lines)
    return {name: value for name, _, value in pairs}


def _serve(asked: socket.socket) -> NoReturn:
    """Fork a program for each request, until there is nobody any more who asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        request, fds, _, _ = socket.recv_fds(asked, MAX_REQUEST_BYTES, 5)
        if not request:
            os._exit(0)
        if (pid := _fork_twice()) == 0:
            asked.close()
            become(Program(**json.loads(request)), *fds)
        for fd in fds:
            os.close(fd)
        asked.send(str(pid).encode())
