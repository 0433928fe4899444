"""Import the modules that are named once, then fork services off, as `python -P -m` of this module MODULE….

What a service imports takes most of its start: 1.5 s for a worker, two thirds of them torch's. Forked from
here it begins where the imports end, and the pages that hold them count once.

Started by `forker.py` beside it with a socket as its stdin; the first one is forked by `early_server.py`,
and becomes what one that is started is. The server does nothing but fork: it has no event loop and no second
thread, for a child would have half of them. A child is not the server's but the launcher's: it is forked by a
fork that ends at once, and the launcher adopts what that one leaves.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import runpy
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from services.launcher.processes.child import KILLED_BECAUSE_ORPHANED, die_with
from shared.import_without import import_without
from shared.process.attribute_cache import fill_attribute_cache
from shared.process.file_pages import give_back_program_pages
from shared.process.heap import trim_heap
from shared.process.heap_holes import fill_heap_holes
from shared.process.parts_of_torch import leave_parts_of_torch

MAX_REQUEST_BYTES = 128 << 10
"""The largest request, which is one packet: a module's name and an environment."""
READY = b"ready"
_ARG_START, _ARG_END = 45, 46
"""The place of the command line in memory: fields of /proc/PID/stat, counted from the one behind the name."""


def main(modules: Sequence[str]) -> None:
    """Returns in the launcher's last moment, and in no child."""
    with socket.socket(fileno=os.dup(0)) as asked:
        _stdin_from_nothing()
        _preload(modules)
        asked.send(READY)
        module = _serve(asked)
    if module:
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def _preload(modules: Sequence[str]) -> None:
    """Ends the process where an import has started a thread."""
    gc.disable()  # a collection would write to all pages that the children share
    import_without("rich", "structlog")  # it is for coloured tracebacks: a sixth of the imports here
    leave_parts_of_torch()
    for module in modules:
        importlib.import_module(module)
        if module.endswith(".__main__"):
            del sys.modules[module]  # a child runs it once more, as its own program
    give_back_program_pages()
    trim_heap()
    fill_attribute_cache()
    fill_heap_holes()
    gc.freeze()
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        sys.exit(f"the imports of {', '.join(modules)} have started {threads - 1} threads")


def _serve(asked: socket.socket) -> str:
    """One child per request. In a child: the module that it is to run; "" when the launcher has gone."""
    launcher = os.getppid()
    while True:
        request, fds, _, _ = socket.recv_fds(asked, MAX_REQUEST_BYTES, 2)
        if not request:
            return ""
        output, go = fds
        told = json.loads(request)
        pid = _fork_twice()
        if pid == 0:
            asked.close()
            _become(told, output=output, go=go, launcher=launcher)
            return str(told["module"])
        os.close(go)
        os.close(output)
        asked.send(str(pid).encode())


def _fork_twice() -> int:
    """The grandchild's pid, whose parent has ended; 0 in the grandchild."""
    told, tell = os.pipe()
    between = os.fork()
    if between == 0:
        pid = os.fork()
        if pid == 0:
            os.close(told)
            os.close(tell)
            return 0
        os.write(tell, str(pid).encode())
        os._exit(0)
    os.close(tell)
    os.waitpid(between, 0)
    pid = int(os.read(told, 20))
    os.close(told)
    return pid


def _become(told: dict[str, object], *, output: int, go: int, launcher: int) -> None:
    """Become the service as exec would have it: output, group, environment and command line."""
    os.setpgid(0, 0)
    if not os.read(go, 1):  # the launcher has given us up: it may not even know that we are there
        os._exit(KILLED_BECAUSE_ORPHANED)
    os.close(go)
    die_with(launcher)()
    for fd in (1, 2):
        os.dup2(output, fd)
    os.close(output)
    environ = told["environ"]
    assert isinstance(environ, dict)
    os.environ.clear()
    os.environ.update(environ)
    show_command([sys.executable, "-P", "-m", str(told["module"])])
    sys.argv[1:] = []
    gc.enable()


def show_command(command: Sequence[str]) -> None:
    """Change what `ps` shows for this process; as much as there is room for."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    text = b"".join(os.fsencode(part) + b"\0" for part in command)[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))


def _stdin_from_nothing() -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)


if __name__ == "__main__":
    main(sys.argv[1:])
