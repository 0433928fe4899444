"""The launcher's part in a scale: who is started and who is let go, with real, tiny child processes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from services.launcher.processes.instance import Instance, InstanceSpec
from services.launcher.scale_follower import ScaleFollower
from shared.files.scale_file import SCALE_NAME, StackScale, write_scale
from tests.support.wait import until

PATIENCE_S = 7.0


class Lines:
    def __init__(self) -> None:
        self.said: list[str] = []

    def write(self, name: str, line: bytes, level: str = "info") -> None:
        del name, level
        self.said.append(line.decode())


class Fleet:
    """A stack of decode workers that run `script`."""

    def __init__(self, script: str = "exec sleep 60", count: int = 1) -> None:
        self.lines = Lines()
        self.script = script
        self.likes: list[tuple[str, str]] = []
        self.drained: list[tuple[str, float]] = []
        self.lives: dict[Instance, asyncio.Task[None]] = {}
        self.instances: list[Instance] = []
        for number in range(count):
            self.launch(f"decode-{number}")

    def launch(self, name: str) -> Instance:
        spec = InstanceSpec("decode", name, ("/bin/sh", "-c", self.script), {"PATH": "/bin:/usr/bin"})
        instance = Instance(spec, self.lines)
        self.instances.append(instance)
        self.lives[instance] = asyncio.create_task(instance.run())
        return instance

    def start_like(self, name: str, like: Instance) -> tuple[Instance, asyncio.Task[None]]:
        self.likes.append((name, like.spec.instance))
        instance = self.launch(name)
        return instance, self.lives[instance]

    def forget_instance(self, instance: Instance) -> None:
        self.instances.remove(instance)

    async def drain(self, instance: Instance, patience_s: float) -> None:
        self.drained.append((instance.spec.instance, patience_s))
        instance.terminate()
        await asyncio.wait((self.lives[instance],))

    @property
    def names(self) -> list[str]:
        return [instance.spec.instance for instance in self.instances]

    async def end(self) -> None:
        for instance in self.instances:
            instance.kill()
        await asyncio.gather(*self.lives.values(), return_exceptions=True)


def follower(state_dir: Path, fleet: Fleet, num_models: int = 1) -> ScaleFollower:
    return ScaleFollower(state_dir, fleet, num_models, fleet.lines.said.append)


def want(state_dir: Path, count: int, number: int = 1, role: str = "decode") -> None:
    write_scale(state_dir, StackScale(number, {role: count}, PATIENCE_S))


async def test_without_the_file_nothing_is_done(tmp_path: Path) -> None:
    fleet = Fleet()
    scale = follower(tmp_path, fleet)
    scale.look()
    assert (scale.number, fleet.names, fleet.lines.said) == (0, ["decode-0"], [])
    await fleet.end()


async def test_instances_that_are_missing_are_started_once_and_do_what_another_does(tmp_path: Path) -> None:
    fleet = Fleet(count=2)
    scale = follower(tmp_path, fleet, num_models=2)
    want(tmp_path, 4)
    for _ in range(3):
        scale.look()
    assert fleet.likes == [("decode-2", "decode-0"), ("decode-3", "decode-1")]
    assert (scale.number, scale.trouble) == (1, "")
    await fleet.end()


async def test_the_last_ones_drain_with_all_their_time_and_are_not_started_again(tmp_path: Path) -> None:
    fleet = Fleet(count=3)
    scale = follower(tmp_path, fleet)
    await until(lambda: all(instance.pid for instance in fleet.instances))
    want(tmp_path, 1)

    def alone() -> bool:
        scale.look()
        return fleet.names == ["decode-0"]

    await until(alone)
    assert sorted(fleet.drained) == [("decode-1", PATIENCE_S), ("decode-2", PATIENCE_S)]
    await fleet.end()


async def test_who_drains_is_followed_by_another_where_it_is_wanted_after_all(tmp_path: Path) -> None:
    fleet = Fleet(count=2)
    scale = follower(tmp_path, fleet)
    await until(lambda: all(instance.pid for instance in fleet.instances))
    want(tmp_path, 1)
    scale.look()
    want(tmp_path, 2, number=2)

    def started() -> bool:
        scale.look()
        return bool(fleet.likes)

    await until(started)
    assert (fleet.likes, fleet.names) == ([("decode-1", "decode-0")], ["decode-0", "decode-1"])
    await fleet.end()


async def test_one_that_cannot_be_started_is_told_of_and_tried_again_by_the_next_scale(
    tmp_path: Path,
) -> None:
    fleet = Fleet()
    scale = follower(tmp_path, fleet)
    fleet.script = "exit 2"
    want(tmp_path, 3)

    def told() -> bool:
        scale.look()
        return bool(scale.trouble) and fleet.names == ["decode-0"]

    await until(told)
    assert "refused its configuration" in scale.trouble
    tries = len(fleet.likes)
    scale.look()
    assert len(fleet.likes) == tries
    fleet.script = "exec sleep 60"
    want(tmp_path, 2, number=2)
    scale.look()
    assert (scale.trouble, fleet.names) == ("", ["decode-0", "decode-1"])
    await fleet.end()


async def test_nobody_is_started_while_others_are_stood_in_for(tmp_path: Path) -> None:
    fleet = Fleet()
    scale = follower(tmp_path, fleet)
    want(tmp_path, 2)
    scale.look(only_ends=True)
    assert fleet.names == ["decode-0"]
    await fleet.end()


async def test_a_role_of_which_there_is_none_stays_so(tmp_path: Path) -> None:
    fleet = Fleet()
    scale = follower(tmp_path, fleet)
    want(tmp_path, 2, role="speculator")
    scale.look()
    assert fleet.names == ["decode-0"]
    await fleet.end()


async def test_a_file_that_cannot_be_read_is_told_of_once(tmp_path: Path) -> None:
    fleet = Fleet()
    scale = follower(tmp_path, fleet)
    (tmp_path / SCALE_NAME).write_text('{"number": 1, "counts": {"decode": 0}, "patience_s": 1}')
    for _ in range(2):
        scale.look()
    assert len(fleet.lines.said) == 1
    assert "counts are from 1" in fleet.lines.said[0]
    await fleet.end()


async def test_the_scale_says_what_is_its_own(tmp_path: Path) -> None:
    fleet = Fleet()
    scale = follower(tmp_path, fleet)
    want(tmp_path, 2)
    scale.look()
    assert [scale.is_of_scale(instance) for instance in fleet.instances] == [False, True]
    await fleet.end()


async def test_those_that_are_absent_drain_and_come_again_as_what_they_were(tmp_path: Path) -> None:
    fleet = Fleet(count=3)
    scale = follower(tmp_path, fleet, num_models=2)
    await until(lambda: all(instance.pid for instance in fleet.instances))
    write_scale(tmp_path, StackScale(1, {"decode": 3}, PATIENCE_S, ("decode-1",)))

    def absent() -> bool:
        scale.look()
        return fleet.names == ["decode-0", "decode-2"]

    await until(absent)
    assert [instance.spec.instance for instance in scale.remembered] == ["decode-1"]
    scale.look()
    assert fleet.likes == [], "it stays away"
    want(tmp_path, 3, number=2)
    scale.look()
    assert fleet.likes == [("decode-1", "decode-1")]
    await fleet.end()
