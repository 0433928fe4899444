"""Check models and memory before anything is started, in a process that ends then.

It imports tokenizers and reads vocabularies: 10 MB that a launcher would keep for as long as its stack runs.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable
from typing import Never

from services.launcher.options import StackOptions
from services.launcher.processes.child import die_with, ending
from services.launcher.processes.forker import forking_works
from shared.errors import InternalError, PenstockError, Unavailable, error_from_code


def check_before_start(
    options: StackOptions, tell: Callable[[str], None], *, apart: bool | None = None
) -> None:
    """Raises InvalidRequest for a model that cannot be served, Unavailable where there is no memory.
    `apart`: in a process of its own; where nothing is said, wherever services are forked too."""
    if forking_works() if apart is None else apart:
        _check_apart(options, tell)
    else:
        _check(options, tell)


def _check(options: StackOptions, tell: Callable[[str], None]) -> None:
    from services.launcher.memory_check import check_memory  # noqa: PLC0415 - this process may not need it
    from services.launcher.model_check import check_models  # noqa: PLC0415

    check_memory(options, *check_models(options, tell), tell)


def _check_apart(options: StackOptions, tell: Callable[[str], None]) -> None:
    read_fd, write_fd = os.pipe()
    dies_with_us = die_with(os.getpid())
    pid = os.fork()
    if pid == 0:
        dies_with_us()
        os.close(read_fd)
        _run_child(options, write_fd)
    os.close(write_fd)
    error = None
    with os.fdopen(read_fd, encoding="utf-8") as lines:
        for line in lines:
            told = json.loads(line)
            if "code" in told:
                error = error_from_code(told["code"], told["message"])
            else:
                tell(told["said"])
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if error is not None:
        raise error
    if code != 0:
        raise Unavailable(f"models could not be checked: the process that does it {ending(code)}")


def _run_child(options: StackOptions, write_fd: int) -> Never:
    """Never returns: what the launcher has to end is not this process's."""
    with os.fdopen(write_fd, "w", encoding="utf-8", buffering=1) as told:

        def say(**line: str) -> None:
            told.write(json.dumps(line) + "\n")

        try:
            _check(options, lambda sentence: say(said=sentence))
        except PenstockError as error:
            say(code=error.code, message=error.message)
        except Exception as error:  # noqa: BLE001 - it is told where all else is
            say(said=traceback.format_exc())
            say(code=InternalError.code, message=f"models could not be checked ({type(error).__name__})")
    os._exit(0)
