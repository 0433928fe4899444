"""The state directory: who owns it, and `stack.json`, which tells others where the stack is."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import structlog

from shared.errors import InvalidRequest, Unavailable
from shared.files.private_folder import make_private_folder
from shared.files.roll_file import ROLL_NAME
from shared.files.scale_file import SCALE_NAME
from shared.files.stack_register import LOCK_NAME, forget_stack, register_stack

log = structlog.get_logger()

DEFAULT_STATE_DIR = Path(".penstock")
STACK_NAME = "stack.json"
BUS_FOLDER = "penstock-bus"
"""The configuration of our own NATS server, and a file of credentials for each of its users."""
RETRY_S = 0.02
"""The pause between two tries to get the lock."""
LOCK_TRIES = 25
"""The most tries behind which a lock that is still held is a launcher's: a look lasts microseconds."""


class StackRunning(Unavailable):
    """Another stack owns this state directory."""


@dataclass(frozen=True, slots=True)
class RunningInstance:
    """`metrics` is HOST:PORT of its Prometheus endpoint, `grpc` and `http` of a gateway's edges ("" until the
    process that runs has said it, and where there is none). `inner` is the instance of another role in its
    process, "" for none."""

    role: str
    id: str
    pid: int
    metrics: str
    grpc: str = ""
    http: str = ""
    inner: str = ""


@dataclass(frozen=True, slots=True)
class StackState:
    """The content of stack.json. `grpc` and `http` are HOST:PORT of the first gateway.

    `nats_credentials` is the file with which commands like `penstock status` come in; None = none needed.
    `adapter_file` is the one that the workers follow, `models` where the files of models and the draft are.
    `share_ports`: all gateways listen on the same ports. `roll` is the number of the roll whose code starts
    now, `stand_in` the instance that stands in for others, `roll_trouble` why it could not be started.
    `scale` is the number of the scale that is followed, `scale_trouble` why it could not start an instance.
    """

    grpc: str
    http: str
    nats: str
    nats_credentials: str | None
    instances: tuple[RunningInstance, ...]
    adapter_file: str = ""
    models: tuple[str, ...] = ()
    share_ports: bool = False
    roll: int = 0
    stand_in: str = ""
    roll_trouble: str = ""
    scale: int = 0
    scale_trouble: str = ""


def credentials_file(state_dir: Path, user: str) -> Path:
    """The credentials of one user of our own NATS server."""
    return state_dir / BUS_FOLDER / f"{user}.toml"


def _lock_alone(lock: IO[str]) -> None:
    """Raises OSError when another launcher has it; a command that looks whether one has it is soon done."""
    for look in range(1, LOCK_TRIES + 1):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if look == LOCK_TRIES:
                raise
            time.sleep(RETRY_S)
        else:
            return


def unwritable(state_dir: Path, error: OSError) -> InvalidRequest:
    """Return the error of a stack that cannot be started for want of room."""
    return InvalidRequest(
        f"the state directory {state_dir} cannot be written to: {error.strerror or error}; make room there, "
        "or pass another one with --state-dir"
    )


class StateDir:
    """Holds the directory's lock for as long as it is open; the kernel frees it whatever happens."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None
        self._written: StackState | None = None

    def acquire(self) -> None:
        """Raises StackRunning when another launcher lives here."""
        try:
            make_private_folder(self.path)
            lock = (self.path / LOCK_NAME).open("a+")
        except OSError as error:
            raise InvalidRequest(
                f"the state directory {self.path} cannot be used: {error.strerror or error}; "
                "pass a writable one with --state-dir"
            ) from error
        try:
            _lock_alone(lock)
        except OSError as error:
            lock.seek(0)
            pid = lock.read(20).strip() or "unknown"
            lock.close()
            raise StackRunning(
                f"a stack (process {pid}) already runs from {self.path}; "
                "stop it with `penstock down`, or pass another --state-dir to run a second one"
            ) from error
        try:
            lock.truncate(0)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
        except OSError as error:
            raise unwritable(self.path, error) from error
        self._lock = lock
        self.clear()
        try:
            register_stack(self.path)
        except OSError as error:  # it is found from its own directory alone
            log.warning("stack_not_registered", error=str(error))

    def write(self, state: StackState) -> None:
        """Replace stack.json in one step when something changed: readers see the old or the new one."""
        if state == self._written:
            return
        handle, name = tempfile.mkstemp(dir=self.path, prefix=STACK_NAME + ".")
        try:
            with os.fdopen(handle, "w") as file:
                json.dump(asdict(state), file, indent=1)
                file.write("\n")
            Path(name).replace(self.path / STACK_NAME)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
        self._written = state

    def make_bus_folder(self) -> Path:
        """Empty, and for nobody else to look into."""
        folder = self.path / BUS_FOLDER
        folder.mkdir(mode=0o700)
        return folder

    def clear(self) -> None:
        (self.path / STACK_NAME).unlink(missing_ok=True)
        (self.path / ROLL_NAME).unlink(missing_ok=True)
        (self.path / SCALE_NAME).unlink(missing_ok=True)
        shutil.rmtree(self.path / BUS_FOLDER, ignore_errors=True)
        self._written = None

    def release(self) -> None:
        if self._lock is not None:
            self.clear()
            self._forget()
            self._lock.truncate(0)  # whoever waits for the end may see this process until its parent has
            self._lock.close()
            self._lock = None

    def _forget(self) -> None:
        try:
            forget_stack(self.path)
        except OSError as error:  # whoever looks for stacks finds that it has ended
            log.warning("stack_not_forgotten", error=str(error))
