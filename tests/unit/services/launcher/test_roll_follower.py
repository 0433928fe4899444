"""The launcher's part in a roll: which code starts, and who stands in, with real, tiny child processes."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

from services.launcher.processes.instance import Instance, InstanceSpec
from services.launcher.roll_follower import RollFollower, with_code
from shared.files.roll_file import ROLL_NAME, StackRoll, write_roll
from tests.support.wait import until

ROLL = StackRoll(1, "/new/python", "/new", "abc", ("decode",))
STANDING_IN = dataclasses.replace(ROLL, stand_in="decode-1", stands_for="decode-0")


class Lines:
    def __init__(self) -> None:
        self.said: list[str] = []

    def write(self, name: str, line: bytes, level: str = "info") -> None:
        del name, level
        self.said.append(line.decode())


class Keeper:
    """A stack of one decode worker, whose stand-ins run `script`."""

    def __init__(self, script: str) -> None:
        self.lines = Lines()
        environ = {"PYTHONPATH": "/old:/other", "PATH": "/bin"}
        command = ("/old/python", "-P", "-m", "services.decode")
        spec = InstanceSpec("decode", "decode-0", command, environ, module="services.decode")
        self.instances = [Instance(spec, self.lines)]
        self.started: list[str] = []
        self.script = script

    def start_stand_in(self, name: str, stands_for: Instance) -> tuple[Instance, asyncio.Task[None]]:
        self.started.append(name)
        spec = dataclasses.replace(
            stands_for.spec, instance=name, command=("/bin/sh", "-c", self.script), module=""
        )
        instance = Instance(spec, self.lines)
        self.instances.append(instance)
        return instance, asyncio.create_task(instance.run())

    @property
    def startable(self) -> list[Instance]:
        return self.instances

    def forget_instance(self, instance: Instance) -> None:
        self.instances.remove(instance)


def follower(state_dir: Path, keeper: Keeper) -> RollFollower:
    return RollFollower(state_dir, keeper, None, keeper.lines.said.append)


async def test_without_the_file_nothing_is_done(tmp_path: Path) -> None:
    keeper = Keeper("exit 0")
    roll = follower(tmp_path, keeper)
    roll.look()
    assert (roll.number, roll.stand_in, keeper.lines.said) == (0, "", [])


async def test_what_starts_from_now_on_runs_the_code_of_the_roll(tmp_path: Path) -> None:
    keeper = Keeper("exit 0")
    roll = follower(tmp_path, keeper)
    write_roll(tmp_path, ROLL)
    roll.look()
    spec = keeper.instances[0].spec
    assert roll.number == 1
    assert spec.command == ("/new/python", "-P", "-m", "services.decode")
    assert spec.environ["PYTHONPATH"] == "/new:/other"


async def test_who_stands_in_is_started_once_and_ends_when_nobody_is_wanted(tmp_path: Path) -> None:
    keeper = Keeper("exec sleep 60")
    roll = follower(tmp_path, keeper)
    write_roll(tmp_path, STANDING_IN)
    for _ in range(3):
        roll.look()
    assert (roll.stand_in, keeper.started) == ("decode-1", ["decode-1"])
    await until(lambda: keeper.instances[1].pid)
    write_roll(tmp_path, ROLL)

    def ended() -> bool:
        roll.look()
        return roll.stand_in == ""

    await until(ended)
    assert [each.spec.instance for each in keeper.instances] == ["decode-0"]
    write_roll(tmp_path, STANDING_IN)
    roll.look()
    assert keeper.started == ["decode-1", "decode-1"]
    keeper.instances[1].kill()
    write_roll(tmp_path, ROLL)
    await until(ended)


async def test_who_stands_in_is_told_once_to_end_and_has_its_time(tmp_path: Path) -> None:
    keeper = Keeper(f"trap 'echo told >> {tmp_path}/told' TERM; echo here; while :; do sleep 0.02; done")
    roll = follower(tmp_path, keeper)
    write_roll(tmp_path, STANDING_IN)
    roll.look()
    stand_in = keeper.instances[1]
    await until(lambda: "here" in stand_in.last_lines)
    write_roll(tmp_path, ROLL)
    for _ in range(3):
        roll.look()
        await until((tmp_path / "told").exists)
    assert ((tmp_path / "told").read_text(), roll.stand_in) == ("told\n", "decode-1")
    stand_in.kill()

    def forgotten() -> bool:
        roll.look()
        return not keeper.instances[1:]

    await until(forgotten)


async def test_a_stand_in_that_cannot_be_started_is_told_of_and_is_tried_again_by_the_next_roll(
    tmp_path: Path,
) -> None:
    keeper = Keeper("exit 2")
    roll = follower(tmp_path, keeper)
    write_roll(tmp_path, STANDING_IN)

    def told() -> bool:
        roll.look()
        return bool(roll.trouble)

    await until(told)
    assert roll.trouble.startswith("decode-1 refused its configuration")
    roll.look()
    assert (keeper.started, roll.stand_in, len(keeper.instances)) == (["decode-1"], "", 1)
    write_roll(tmp_path, dataclasses.replace(STANDING_IN, number=2))
    roll.look()
    assert (keeper.started, roll.trouble) == (["decode-1"] * 2, "")
    await until(told)


async def test_nobody_stands_in_for_who_is_not_there(tmp_path: Path) -> None:
    keeper = Keeper("exit 0")
    roll = follower(tmp_path, keeper)
    write_roll(tmp_path, dataclasses.replace(STANDING_IN, stands_for="decode-7"))
    roll.look()
    assert (roll.trouble, keeper.started) == ("there is no instance 'decode-7' to stand in for", [])


async def test_a_file_that_cannot_be_read_is_told_of_once(tmp_path: Path) -> None:
    keeper = Keeper("exit 0")
    roll = follower(tmp_path, keeper)
    (tmp_path / ROLL_NAME).write_text("nothing")
    roll.look()
    roll.look()
    (sentence,) = keeper.lines.said
    assert "remove it" in sentence


def test_a_program_that_is_no_service_of_ours_stays_as_it_is() -> None:
    nats = InstanceSpec("nats", "nats", ("nats-server",), {})
    assert with_code(nats, "/new/python", "/new") is nats
