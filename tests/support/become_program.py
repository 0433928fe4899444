"""A fork of a process that has imported our modules becomes a program of ours, as exec would have it."""

from __future__ import annotations

import asyncio
import atexit
import faulthandler
import gc
import importlib
import json
import logging
import os
import runpy
import signal
import socket
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from services.launcher.processes import fork_server, forker
from services.launcher.processes.child import KILLED_BECAUSE_ORPHANED, Child, die_with, output_pipe, spawn
from services.launcher.processes.forker import AdoptedProcess
from shared.process import limited_jobs, niceness, quiet_end
from tests.support import keep_place

FORK_SERVER = ("-P", "-m", "services.launcher.processes.fork_server")
UNFORKED_WARNINGS = (PendingDeprecationWarning, DeprecationWarning, ImportWarning, ResourceWarning)
"""The warnings that Python ignores where nobody asks for them."""


@dataclass(frozen=True, slots=True)
class Program:
    """`argv` stands behind the interpreter, `ignored` are signals, and a `process_group` of -1 is ours."""

    argv: Sequence[str]
    environ: Mapping[str, str]
    cwd: str
    ignored: Sequence[int]
    new_session: bool
    process_group: int

    def packed(self) -> bytes:
        return json.dumps(asdict(self)).encode()


class _Replaced(BaseException):
    """This program becomes another one: `argv`, as behind the interpreter."""

    def __init__(self, argv: Sequence[str]) -> None:
        super().__init__(argv)
        self.argv = argv


def become(program: Program, stdin: int, stdout: int, stderr: int, told: int, go: int) -> NoReturn:
    """Run `program` with these streams once `go` can be read; ends as it does. `told` is closed before."""
    if not os.read(go, 1):  # whoever asked has given us up
        os._exit(KILLED_BECAUSE_ORPHANED)
    os.close(go)
    if program.new_session:
        os.setsid()
    elif program.process_group != -1:
        os.setpgid(0, program.process_group)
    _take_streams(stdin, stdout, stderr)
    os.chdir(program.cwd)
    _forget_tests()
    _take_environ(program.environ)
    _reset_signals(program.ignored)
    os.close(told)
    os.execv = _replace  # type: ignore[assignment]
    argv = program.argv
    while True:
        try:
            _run_and_end(argv)
        except _Replaced as replaced:
            argv = replaced.argv
            _reset_signals(program.ignored)


def _run_and_end(argv: Sequence[str]) -> NoReturn:
    """Run one program and end the process as Python would behind it; raises _Replaced."""
    code = 1
    try:
        _run(argv)
        code = 0
    except _Replaced:
        raise
    except SystemExit as end:
        code = _code_of(end)
    except BaseException as error:  # noqa: BLE001 - as Python does with what nobody catches
        try:
            sys.excepthook(type(error), error, error.__traceback__)
        except SystemExit as end:
            code = _code_of(end)
        else:
            if isinstance(error, KeyboardInterrupt):
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGINT)
    _end(code)


def _end(code: int) -> NoReturn:
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(BrokenPipeError, ValueError):
            stream.flush()
    os._exit(code)


def _code_of(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    print(end.code, file=sys.stderr)
    return 1


def _run(argv: Sequence[str]) -> None:
    """Run `[-P] -m MODULE …` or `FILE …`."""
    if not argv[0].startswith("-"):
        sys.argv = [*argv]
        place = os.path.dirname(os.path.abspath(argv[0]))
        sys.path[:] = [place, *_python_path(), *filter(_is_installed, sys.path)]
        runpy.run_path(argv[0], run_name="__main__")
        return
    safe = argv[0] == "-P"
    module, *rest = argv[1 + safe :]
    sys.argv = ["-m", *rest]
    sys.path[:] = [*([] if safe else [os.getcwd()]), *_python_path(), *filter(_is_installed, sys.path)]
    if module == "services.launcher" and not {"-d", "--detach"} & {*rest}:
        _have_fork_server()
    for name in (module, f"{module}.__main__"):
        if not hasattr(sys.modules.get(name), "__path__"):
            sys.modules.pop(name, None)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _python_path() -> list[str]:
    return [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]


def _is_installed(place: str) -> bool:
    return place.startswith(sys.base_prefix) or "site-packages" in place


def _replace(path: str, argv: Sequence[str]) -> NoReturn:
    if path != sys.executable:
        os.execve(path, [*argv], os.environ)
    raise _Replaced(argv[1:])


def _take_streams(*given: int) -> None:
    for fd, standard in zip(given, range(3), strict=True):
        os.dup2(fd, standard)
    for fd in given:
        os.close(fd)


def _open_streams() -> None:
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for the rest of the process's life
    for number, name in ((1, "stdout"), (2, "stderr")):
        stream = open(  # noqa: SIM115
            number, "w", closefd=False, errors="backslashreplace" if number == 2 else None
        )
        line_buffering = number == 2 or stream.isatty()
        stream.reconfigure(line_buffering=line_buffering, write_through=unbuffered)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def _take_environ(environ: Mapping[str, str]) -> None:
    before = _hub_settings()
    os.environ.clear()
    os.environ.update(environ)
    _open_streams()
    hub = sys.modules.get("huggingface_hub.constants")
    if hub is not None and _hub_settings() != before:
        importlib.reload(hub)


def _hub_settings() -> dict[str, str]:
    """Return the variables that the library of the hub reads when it is imported."""
    return {name: value for name, value in os.environ.items() if name.startswith(("HF_", "HUGGINGFACE_"))}


def _forget_tests() -> None:
    """What pytest and tests have changed of the process that this is a fork of."""
    logging.getLogger().handlers.clear()
    atexit._clear()
    atexit.register(quiet_end._leave_the_rest_to_the_kernel)
    faulthandler.disable()
    sys.excepthook, sys.unraisablehook = quiet_end._end_without_a_word, quiet_end._press_again
    threading.excepthook = threading.__excepthook__
    sys.meta_path[:] = [each for each in sys.meta_path if not type(each).__module__.startswith("_pytest")]
    warnings.resetwarnings()
    for kind in UNFORKED_WARNINGS:
        warnings.simplefilter("ignore", kind)
    niceness.STANDING_BACK_NICE = keep_place.STANDING_BACK_NICE
    limited_jobs.job_command = keep_place.job_command
    tempfile.tempdir = None
    gc.enable()


def _reset_signals(ignored: Sequence[int]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        default: Any = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        signal.signal(number, signal.SIG_IGN if number in ignored else default)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


# ---- the launcher's fork server -----------------------------------------------------------------------


def _have_fork_server() -> None:
    """Let the launcher that this process becomes find a fork server whose imports are done."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    die = die_with(os.getpid())
    pid = os.fork()
    if pid == 0:
        ours.close()
        die()
        _be_fork_server(theirs)
    theirs.close()
    waiting = [ours]

    async def spawn_ready(
        command: Sequence[str], environ: Mapping[str, str], *, stdin: int = asyncio.subprocess.DEVNULL
    ) -> Child:
        if tuple(command[:4]) != (sys.executable, *FORK_SERVER) or not waiting:
            return await spawn(command, environ, stdin=stdin)
        request = json.dumps([command[4:], dict(environ)]).encode()
        async with output_pipe() as (output, pipe, write_fd):
            with waiting.pop() as asked:
                socket.send_fds(asked, [request], [stdin, write_fd])
            return Child(AdoptedProcess(pid), output, pipe)

    forker.spawn = spawn_ready  # type: ignore[attr-defined]


def _be_fork_server(asked: socket.socket) -> NoReturn:
    nothing = os.open(os.devnull, os.O_RDWR)
    _take_streams(nothing, os.dup(nothing), os.dup(nothing))
    request, fds, _, _ = socket.recv_fds(asked, fork_server.MAX_REQUEST_BYTES, 2)
    if not request:
        os._exit(0)
    asked.close()
    os.setpgid(0, 0)
    modules, environ = json.loads(request)
    stdin, output = fds
    _take_streams(stdin, output, os.dup(output))
    _take_environ(environ)
    sys.path[:] = [*_python_path(), *filter(_is_installed, sys.path)]
    sys.argv = ["-m", *modules]
    code = 1
    try:
        fork_server.main(modules)
        code = 0
    except SystemExit as end:
        code = _code_of(end)
    except BaseException as error:  # noqa: BLE001 - as Python does with what nobody catches
        sys.excepthook(type(error), error, error.__traceback__)
    _end(code)
