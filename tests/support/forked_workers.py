"""Fork the workers of `pytest -n` from the process that has imported the tests, which is done once so.

xdist starts each worker as a fresh interpreter, which imports torch, transformers and 600 modules before it
runs any test: two thirds of what it computes until then. One that replaces a dead worker is fresh still.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import logging
import multiprocessing
import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import pytest
from execnet import gateway_io
from execnet.gateway_base import ExecModel, Popen2IO, get_execmodel
from execnet.xspec import XSpec
from hypothesis.internal.conjecture.providers import _get_local_constants


class ForkedWorker(Popen2IO):
    """A child of this process that waits for its program, and what execnet asks of it."""

    def __init__(self, execmodel: ExecModel, earlier: Sequence[ForkedWorker]) -> None:
        child_stdin, stdin = os.pipe()
        stdout, child_stdout = os.pipe()
        super().__init__(os.fdopen(stdin, "wb"), os.fdopen(stdout, "rb"), execmodel)
        # A worker ends where its stdin does: no other may hold that open.
        ours = [end for worker in (*earlier, self) for end in (worker.outfile, worker.infile)]
        self._process = multiprocessing.get_context("fork").Process(
            target=_work, args=(child_stdin, child_stdout, ours)
        )
        self._process.start()
        os.close(child_stdin)
        os.close(child_stdout)

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()


def fork_workers(config: pytest.Config, count: int) -> None:
    """Import the tests that `config` names, fork `count` workers, and have execnet take these first."""
    places = (config.invocation_params.dir / argument.partition("::")[0] for argument in config.args)
    from tests.support.ready_programs import PROGRAMS  # noqa: PLC0415 - hooks of the programs come behind pytest's

    import_tests([*PROGRAMS, *names_of_tests(config.rootpath, places)])
    _get_local_constants()  # which hypothesis draws from: each worker would read all modules for them
    gc.freeze()
    workers: list[ForkedWorker] = []
    for _ in range(count):
        workers.append(ForkedWorker(get_execmodel("main_thread_only"), workers))
    start_fresh = gateway_io.create_io

    def create_io(spec: XSpec, execmodel: ExecModel) -> Any:
        return workers.pop(0) if workers else start_fresh(spec, execmodel)

    gateway_io.create_io = create_io


def names_of_tests(root: Path, places: Iterable[Path]) -> list[str]:
    """Return the names of the modules of tests at these places, which are files or folders below `root`."""
    files = {file for place in places for file in ([place] if place.is_file() else place.rglob("test_*.py"))}
    return [".".join(file.relative_to(root).with_suffix("").parts) for file in sorted(files)]


def import_tests(modules: Iterable[str]) -> None:
    """Import what can be imported without a warning: of the rest, workers report what is wrong with it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for module in modules:
            with suppress(Exception, pytest.skip.Exception):
                importlib.import_module(module)


def _work(stdin: int, stdout: int, others: Iterable[IO[bytes]]) -> None:
    """Be a worker to the end: run the program that execnet sends to an interpreter, in one line."""
    for pipe in others:
        pipe.close()
    for end, standard in ((stdin, 0), (stdout, 1)):
        os.dup2(end, standard)
        os.close(end)
    sys.stdin, sys.stdout, sys.stderr = (
        open(number, mode, closefd=False, buffering=1)  # noqa: SIM115 - they last as long as the process
        for number, mode in enumerate(("r", "w", "w"))
    )
    logging.getLogger().handlers.clear()  # pytest's own, of the process that this one was
    from tests.support.ready_programs import start_programs_ready  # noqa: PLC0415 - as above

    start_programs_ready()
    try:
        exec(eval(sys.stdin.readline()), {"__name__": "__main__"})
    finally:
        atexit._run_exitfuncs()
