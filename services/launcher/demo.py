"""`make demo`: the whole stack on free ports, one question streamed through it, a clean end.

Every part is the program a user runs: `penstock up` and `penstock ask` as processes.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from shared.process.quiet_end import end_quietly

QUESTION = "What is the default gRPC port of the gateway?"
STOP_TIMEOUT_S = 30.0
READY = "ready grpc="
QUIET = ("--log-level", "warning")
FOR_PEOPLE = ("--log-format", "text")
"""`penstock up` has a pipe as its stdout here, and would take that for a program that reads."""
PENSTOCK = (sys.executable, "-P", "-m", "services.cli")


def main(up_options: Sequence[str]) -> int:
    """The first exit code that is not 0, of `up` or `ask`. `up_options` go to `penstock up`."""
    if "--help" in up_options:
        print(f"{__doc__}\nOptions are those of `penstock up`.")
        return 0
    with tempfile.TemporaryDirectory(prefix="penstock-demo-") as folder:
        state_dir = str(Path(folder) / "state")
        stack = subprocess.Popen(  # noqa: S603 (our own program)
            [
                *PENSTOCK,
                "up",
                "--grpc-port",
                "0",
                "--http-port",
                "0",
                "--state-dir",
                state_dir,
                *QUIET,
                *(FOR_PEOPLE if sys.stdout.isatty() and sys.stderr.isatty() else ()),
                *up_options,
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            asked = _ask(state_dir) if _until_ready(stack) else 1
        except KeyboardInterrupt:  # it reached the stack too, which stops by itself
            _wait(stack)
            raise
        finally:
            stopped = _stop(stack)
    print("the stack has ended cleanly" if stopped == 0 else f"the stack ended with {stopped}", flush=True)
    return asked or stopped


def _until_ready(stack: subprocess.Popen[str]) -> bool:
    """The launcher itself bounds its start; False when it ended instead."""
    assert stack.stdout is not None
    for line in stack.stdout:
        print(line, end="", flush=True)
        if line.startswith(READY):
            return True
    return False


def _ask(state_dir: str) -> int:
    options = ("--retrieve", "--temperature", "0", "--max-tokens", "96", "--deadline", "60", "--timeline")
    print(f"\n> penstock ask {' '.join(options)} {QUESTION!r}", flush=True)
    return subprocess.run(  # noqa: S603 (our own program)
        [*PENSTOCK, "ask", *options, "--state-dir", state_dir, QUESTION],
        stdin=subprocess.DEVNULL,
        check=False,
    ).returncode


def _stop(stack: subprocess.Popen[str]) -> int:
    assert stack.stdout is not None
    if stack.poll() is None:
        stack.send_signal(signal.SIGTERM)
    try:
        return _wait(stack)
    finally:
        stack.stdout.close()


def _wait(stack: subprocess.Popen[str]) -> int:
    """Its exit code; not 0 when it had to be killed."""
    try:
        return stack.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        stack.kill()
        return stack.wait() or 1


if __name__ == "__main__":
    sys.exit(end_quietly(lambda: main(sys.argv[1:])))
