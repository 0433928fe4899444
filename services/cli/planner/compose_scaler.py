"""Scale services of Compose: by its own command, which is run, or printed for somebody who does."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Mapping, Sequence

from services.cli.planner.fleet_planner import Targets
from services.cli.planner.fleet_sight import FleetSight
from shared.errors import Unavailable
from shared.tasks import cancel_until_done, start_task

COMPOSE_TIMEOUT_S = 600.0
"""The longest that the command may take: it waits until instances are healthy."""
MAX_COMPOSE_BYTES = 1 << 16
"""The output of the command that is read."""


class ComposeScaler:
    """`files` are those behind `-f`, in their order; `suffixes` what the services of a model end with, "" of
    the first. `run` False: the command is told alone."""

    asked = False

    def __init__(
        self,
        files: Sequence[str],
        suffixes: Mapping[str, str],
        *,
        run: bool,
        program: Sequence[str] = ("docker", "compose"),
        tell: Callable[[str], None] = print,
    ) -> None:
        self._files = files
        self._suffixes = suffixes
        self._run = run
        self._program = program
        self._tell = tell
        self._told: tuple[str, ...] = ()

    async def apply(self, sight: FleetSight, targets: Targets) -> str:
        command = self.command(sight.models, targets)
        if command == self._told:
            return "the command is the same as before"
        words = shlex.join(command)
        if self._run:
            await _run(command)
        else:
            self._tell(words)
        self._told = command
        return f"{'ran' if self._run else 'told'}: {words}"

    def command(self, models: Sequence[str], targets: Targets) -> tuple[str, ...]:
        """Return the command that has these. Raises Unavailable for a model whose services have no name."""
        services: dict[str, int] = {}
        for place, model in enumerate(models):
            if place and model not in self._suffixes:
                raise Unavailable(
                    f"the services of {model} are not known: pass --compose-suffix {model}=-second"
                )
            for role, count in targets[model].items():
                services[f"{role}{self._suffixes.get(model, '')}"] = count
        named = [part for file in self._files for part in ("-f", file)]
        scales = [part for service, count in services.items() for part in ("--scale", f"{service}={count}")]
        return (*self._program, *named, "up", "--detach", "--no-deps", "--no-recreate", *scales, *services)


async def _run(command: Sequence[str]) -> None:
    """Raises Unavailable with the last line of a command that fails."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        raise Unavailable(
            f"{command[0]} cannot be run ({error.strerror}); install it, or let the command be told alone"
        ) from error
    assert process.stdout is not None
    reading = start_task(_last_bytes(process.stdout), name="compose-output")
    try:
        async with asyncio.timeout(COMPOSE_TIMEOUT_S):
            said = await reading
            code = await process.wait()
    except TimeoutError as error:
        raise Unavailable(f"{shlex.join(command)} took longer than {COMPOSE_TIMEOUT_S:g} s") from error
    finally:
        await cancel_until_done(reading)
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code:
        lines = said.decode(errors="replace").strip().splitlines()
        raise Unavailable(
            f"{shlex.join(command)} ended with {code}: {lines[-1] if lines else 'it said nothing'}"
        )


async def _last_bytes(output: asyncio.StreamReader) -> bytes:
    said = b""
    while part := await output.read(MAX_COMPOSE_BYTES):
        said = (said + part)[-MAX_COMPOSE_BYTES:]
    return said
