"""The stack: everything that `penstock up` runs, from the first process to the last."""

from __future__ import annotations

import asyncio
import os
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Protocol

from services.launcher.adapters import prepare_adapter_file
from services.launcher.network.gateway_ports import GatewayPorts
from services.launcher.network.nats import let_in, nats_spec, wait_until_up, write_users
from services.launcher.network.own_beats import OwnBeats
from services.launcher.network.stack_bus import StackBus
from services.launcher.options import StackOptions
from services.launcher.plan import (
    bus_users,
    fork_server_environ,
    named_spec,
    plan_instances,
    planner_spec,
    stand_in_spec,
)
from services.launcher.processes.early_server import EarlyServer
from services.launcher.processes.forker import Forker, forking_works
from services.launcher.processes.instance import Instance, InstanceSpec, StartFailed
from services.launcher.roll_follower import RollFollower
from services.launcher.scale_follower import ScaleFollower
from services.launcher.stack_log import StackLog
from services.launcher.state import STACK_NAME, RunningInstance, StackState, StateDir, credentials_file
from services.launcher.watch.prober import Prober
from services.launcher.watch.start_watch import StartWatch, busy_words
from services.launcher.watch.stopped_watch import StoppedWatch
from services.launcher.watch.troubles import Troubles
from shared.alarm import Alarm
from shared.bus.addresses import without_password
from shared.bus.permissions import OPERATOR
from shared.errors import PenstockError
from shared.messages import Heartbeat
from shared.process.cores import usable_cores
from shared.tasks import cancel_until_done
from shared.ticks import seconds_to_tick

START_POLL_S = 0.05
WATCH_POLL_S = 1.0
"""The most by which stack.json may be late about a process that has not told of itself yet."""
STOP_TIMEOUT_S = 20.0
GATEWAY_TIMEOUT_S = 15.0
"""The part of the stop's time in which gateways finish their requests before the others stop: their drain
(`drain_timeout_s`), and then a moment in which every stream that is left hears how it ended."""
LEAST_TIMEOUT_S = 2.0
KILL_TIMEOUT_S = 5.0


class Plan(Protocol):
    def __call__(
        self, options: StackOptions, *, nats_url: str, grpc_ports: list[int], http_ports: list[int]
    ) -> list[InstanceSpec]: ...


class Stack:
    """`run` starts everything, announces it, and returns when `stop` is set and nothing is left.

    `stop` set: the services drain and end in their order. `kill` set: they end now. `announce` gets
    the line that says where the stack is. Raises StartFailed, ConfigurationRefused or StackRunning;
    nothing is left running then either.
    """

    def __init__(
        self,
        options: StackOptions,
        log: StackLog,
        announce: Callable[[str], None],
        *,
        plan: Plan = plan_instances,
        early: EarlyServer | None = None,
    ) -> None:
        """`early`: a fork server that waits until services are started."""
        self.stop = asyncio.Event()
        self.kill = asyncio.Event()
        self._options = options
        self._log = log
        self._announce = announce
        self._plan = plan
        self._state = StateDir(options.state_dir)
        self._nats: Instance | None = None
        self._planner: Instance | None = None
        self._model_paths = options.model_paths
        self._ports: GatewayPorts | None = None
        self._news = Alarm()
        """A process has come, has ended or is in another state, or the stack is to stop."""
        self._beats = OwnBeats(self._news.ring)
        self.instances: list[Instance] = []
        self._tasks: dict[Instance, asyncio.Task[None]] = {}
        self._is_written = False
        """stack.json is what it was to be when it was written last."""
        self._troubles = Troubles(self._say)
        self._bus = StackBus(
            options.nats_url, options.nats_credentials, self._beats, self._troubles, self._say
        )
        self._forker: Forker | None = None
        self._early = early
        self._forking: asyncio.Task[None] | None = None
        self._roll: RollFollower | None = None
        self._scale = ScaleFollower(self._state.path, self, len(options.models), self._say)

    @property
    def console_url(self) -> str:
        """The address of the first gateway's console, once there are ports."""
        scheme = "https" if self._options.settings["gateway"]["tls_cert"].value else "http"
        return f"{scheme}://{self._ports.http_address if self._ports is not None else ''}/"

    async def run(self) -> None:
        self._state.acquire()
        self._log.keep_in(self._state.path)
        told = asyncio.create_task(self._hear_stop(), name="stop")
        try:
            prepare_adapter_file(self._options)
            self._ports = ports = GatewayPorts(self._options)
            await self._start_bus()
            self._start_instances(ports)
            if await self._until_ready():
                self._write_state()
                nats = without_password(self._bus.url)
                self._announce(f"ready grpc={ports.grpc_address} http={ports.http_address} nats={nats}")
                self._start_planner()
                await self._watch()
        except PenstockError as error:  # who runs this tells the terminal when all has ended
            self._log.keep("penstock", str(error).encode(), "error")
            raise
        except Exception:
            self._log.keep("penstock", traceback.format_exc().encode(errors="backslashreplace"), "error")
            raise
        finally:
            await cancel_until_done(told)
            await self._end()
            if self._ports is not None:
                self._ports.close()
            self._log.close_file()
            self._state.release()

    # ---- start --------------------------------------------------------------------------------

    async def _start_bus(self) -> None:
        """Connect, to a nats-server of its own where no other one is named."""
        if not self._bus.url:
            config = write_users(self._state, bus_users(self._options))
            self._bus.credentials = str(credentials_file(self._state.path, OPERATOR))
            spec, self._bus.url = nats_spec(config)
            self._nats = self._launch(spec)
            await wait_until_up(self._nats, self._bus.url)
            self._nats.mark_ready()
        await self._bus.open()

    def _start_instances(self, ports: GatewayPorts) -> None:
        specs = self._plan(
            self._options, nats_url=self._bus.url, grpc_ports=ports.grpc, http_ports=ports.http
        )
        self._say(f"starting {len(specs)} services: {', '.join(spec.instance for spec in specs)}")
        for spec in specs:
            self._beats.follow(spec.role, spec.instance)
        preload = dict.fromkeys(module for spec in specs for module in spec.preload)
        if preload and forking_works():
            self._forker = Forker([*preload], fork_server_environ(), self._log, early=self._early)
            self._forking = asyncio.create_task(self._forker.run(), name="forker")
            self._forking.add_done_callback(self._note_end)
        self.instances = [self._launch(spec) for spec in specs]
        self._roll = RollFollower(self._state.path, self, self._forker, self._say)

    def _start_planner(self) -> None:
        settings = self._options.planner_settings
        if settings is not None:
            self._planner = self._launch(planner_spec(self._state.path, settings))

    def _launch(self, spec: InstanceSpec) -> Instance:
        instance = Instance(spec, self._log, forker=self._forker)
        self._tasks[instance] = task = asyncio.create_task(instance.run(), name=spec.instance)
        task.add_done_callback(self._note_end)
        return instance

    def _note_end(self, _task: asyncio.Task[None]) -> None:
        self._news.ring()

    async def _hear_stop(self) -> None:
        await self.stop.wait()
        self._news.ring()

    async def _until_ready(self) -> bool:
        """Wait for every instance; False when told to stop before that. Raises StartFailed."""
        watch = StartWatch(self._options.start_timeout_s)
        loading: set[str] = set()
        while not self.stop.is_set():
            missing = [instance for instance in self.instances if not self._check_ready(instance, loading)]
            if not missing:
                return True
            late = watch.late({instance.spec.instance: self._steps(instance) for instance in missing})
            if late:
                slow = [instance for instance in missing if instance.spec.instance in late]
                raise StartFailed(_too_slow(slow, self._options.start_timeout_s))
            await self._tick(START_POLL_S)
        return False

    def _steps(self, instance: Instance) -> int:
        """Return how far it is, if it has said so."""
        beat = self._beats.of(instance)
        return beat.steps if beat is not None else 0

    def _check_ready(self, instance: Instance, loading: set[str]) -> bool:
        """Return whether it was ready once; tells the user about every process that becomes so."""
        name, beat = instance.spec.instance, self._beats.of(instance)
        if beat is None or instance.ready_pid == beat.pid:
            return instance.was_ready
        if beat.state == "ready":
            instance.mark_ready()
            self._say(f"{name} ready in {time.monotonic() - instance.started_s:.1f} s")
            for adapter in beat.worker.adapters:
                if adapter.error:
                    self._say(f"{name} has not loaded the adapter {adapter.name}: {adapter.error}")
        elif beat.state == "loading" and name not in loading:
            loading.add(name)
            self._say(f"{name} loading …")
        return instance.was_ready

    # ---- run ----------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Keep, until told to stop, stack.json true and the services alive. Raises what ends an instance for
        good."""
        assert self._roll is not None
        sharing = StoppedWatch(self._sharing_gateways)
        watches = (
            asyncio.create_task(Prober(self._addresses).run(), name="prober"),
            asyncio.create_task(sharing.run(), name="stopped-watch"),
        )
        known: tuple[object, ...] = ()
        try:
            while not self.stop.is_set():
                has_news = await self._tick(seconds_to_tick(WATCH_POLL_S))
                await self._bus.keep()
                self._roll.look()
                # Who stands in has the name that the next instance of its role would have.
                self._scale.look(only_ends=bool(self._roll.stand_in))
                if self._planner is not None and self._planner.pid and not self._planner.was_ready:
                    self._planner.mark_ready()  # its end ends nothing else
                now = self._processes()
                if has_news or now != known or not self._is_written:
                    known = now
                    for instance in self.instances:
                        self._check_ready(instance, loading=set())
                    self._write_state()
                for watch in watches:
                    if watch.done():
                        watch.result()
        finally:
            await cancel_until_done(*watches)

    def _processes(self) -> tuple[object, ...]:
        """Return what is another value where stack.json may have to be, beside news of heartbeats."""
        assert self._roll is not None
        pids = tuple(instance.pid for instance in self.instances)
        roll, scale = self._roll, self._scale
        return pids, roll.number, roll.stand_in, roll.trouble, scale.number, scale.trouble

    def _write_state(self) -> None:
        """Keep stack.json true, as soon as there is room for it: services do not wait for that."""
        self._is_written = False
        try:
            self._state.write(self._description())
            self._is_written = True
        except OSError as error:
            self._troubles.tell(
                "state",
                f"{self._state.path / STACK_NAME} cannot be written ({error.strerror or error}): `penstock "
                "status` and others may not find what was started since; it is written when that is over",
            )
        else:
            if self._troubles.over("state"):
                self._say(f"{self._state.path / STACK_NAME} is up to date again")

    def _addresses(self) -> list[tuple[Instance, str]]:
        """Return where each running process serves /live, unless its heartbeats say that it lives."""
        beats = [(instance, self._beats.of(instance)) for instance in self.instances]
        return [
            (instance, beat.metrics)
            for instance, beat in beats
            if beat is not None and beat.metrics and not self._beats.is_heard(beat)
        ]

    async def _tick(self, poll_s: float) -> bool:
        """Wait for a moment, news of an instance or its end, or a stop; whether there were any."""
        has_news = await self._news.wait(poll_s)
        self._news.clear()
        for instance, task in self._tasks.items():
            if task.done() and not self._ends_alone(instance):
                task.result()
        if self._forking is not None and self._forking.done():
            self._forking.result()
        return has_news

    def _description(self) -> StackState:
        return StackState(
            grpc=self._ports.grpc_address if self._ports is not None else "",
            http=self._ports.http_address if self._ports is not None else "",
            nats=self._bus.url,
            nats_credentials=self._bus.credentials or None,
            instances=tuple(_described(instance, self._beats.of(instance)) for instance in self.instances),
            adapter_file=str(self._options.adapter_file),
            models=self._model_paths,
            share_ports=self._options.share_ports,
            roll=self._roll.number if self._roll is not None else 0,
            stand_in=self._roll.stand_in if self._roll is not None else "",
            roll_trouble=self._roll.trouble if self._roll is not None else "",
            scale=self._scale.number,
            scale_trouble=self._scale.trouble,
        )

    # ---- roll and scale -----------------------------------------------------------------------

    @property
    def startable(self) -> list[Instance]:
        """Return the instances, and those that a scale has let go and may want again."""
        return [*self.instances, *self._scale.remembered]

    def start_stand_in(self, name: str, stands_for: Instance) -> tuple[Instance, asyncio.Task[None]]:
        """Start an instance that does what another one does, beside it, for as long as that is away."""
        return self._start_beside(stand_in_spec(stands_for.spec, name, self._options))

    def start_like(self, name: str, like: Instance) -> tuple[Instance, asyncio.Task[None]]:
        """Start an instance that does what another one does."""
        return self._start_beside(named_spec(like.spec, name, self._options))

    def _start_beside(self, spec: InstanceSpec) -> tuple[Instance, asyncio.Task[None]]:
        if self._nats is not None:
            for name in filter(None, (spec.instance, spec.inner)):
                let_in(self._state.path, name, self._nats)
        self._beats.follow(spec.role, spec.instance)
        instance = self._launch(spec)
        self.instances.append(instance)
        return instance, self._tasks[instance]

    def forget_instance(self, instance: Instance) -> None:
        """It has ended, and is not started again."""
        self.instances.remove(instance)
        del self._tasks[instance]
        self._beats.forget(instance.spec.role, instance.spec.instance)

    async def drain(self, instance: Instance, patience_s: float) -> None:
        """Ask it to finish what it has, over the bus: that gives it the time. One that does not answer, as
        it loads or hangs, is told by a signal."""
        if not await self._bus.ask_to_drain(instance.spec, patience_s):
            instance.terminate()
        await asyncio.wait((self._tasks[instance],))

    def _ends_alone(self, instance: Instance) -> bool:
        """Return whether its end, and what it has failed with, is looked at elsewhere."""
        stands_in = self._roll is not None and self._roll.is_stand_in(instance)
        return stands_in or self._scale.is_of_scale(instance)

    def _sharing_gateways(self) -> list[Instance]:
        """Return the gateways among which the kernel shares out connections."""
        gateways = [instance for instance in self.instances if instance.spec.role == "gateway"]
        return gateways if self._options.share_ports and len(gateways) > 1 else []

    # ---- end ----------------------------------------------------------------------------------

    async def _end(self) -> None:
        """Gateways, then the other services, then NATS; what does not end in time is killed."""
        until_s = time.monotonic() + STOP_TIMEOUT_S
        if self._forker is not None and self._forking is not None:
            self._forker.close()
            await asyncio.wait((self._forking,), timeout=KILL_TIMEOUT_S)
        await self._end_group([self._planner] if self._planner else [], LEAST_TIMEOUT_S)
        gateways = [instance for instance in self.instances if instance.spec.role == "gateway"]
        others = [instance for instance in self.instances if instance.spec.role != "gateway"]
        await self._end_group(gateways, GATEWAY_TIMEOUT_S)
        await self._end_group(others, max(LEAST_TIMEOUT_S, until_s - time.monotonic()))
        await self._bus.close()
        await self._end_group([self._nats] if self._nats else [], LEAST_TIMEOUT_S)

    async def _end_group(self, group: list[Instance], timeout_s: float) -> None:
        """Nothing of the group runs when this returns."""
        tasks = [self._tasks[instance] for instance in group]
        if not tasks:
            return
        for instance in group:
            instance.terminate()
        ended = asyncio.gather(*tasks, return_exceptions=True)
        killed = asyncio.create_task(self.kill.wait())
        await asyncio.wait((ended, killed), timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        killed.cancel()
        if not ended.done():
            late = [instance for instance in group if not self._tasks[instance].done()]
            self._say(f"killing {_names(late)}")
            for instance in late:
                instance.kill()
            await asyncio.wait((ended,), timeout=KILL_TIMEOUT_S)

    def _say(self, sentence: str) -> None:
        self._log.write("penstock", sentence.encode())


def _described(instance: Instance, beat: Heartbeat | None) -> RunningInstance:
    return RunningInstance(
        role=instance.spec.role,
        id=instance.spec.instance,
        pid=instance.pid,
        metrics=beat.metrics if beat is not None else "",
        grpc=beat.gateway.grpc if beat is not None else "",
        http=beat.gateway.http if beat is not None else "",
        inner=instance.spec.inner,
    )


def _names(instances: Iterable[Instance]) -> str:
    return ", ".join(instance.spec.instance for instance in instances)


def _too_slow(missing: list[Instance], timeout_s: float) -> str:
    said = "; ".join(f"{instance.spec.instance} last said: {instance.last_words}" for instance in missing)
    longer = f"--start-timeout {5 * timeout_s:.0f} gives them longer"
    return (
        f"{_names(missing)} did not become ready within {timeout_s:.0f} s. {said}. "
        f"{busy_words(os.getloadavg()[0], usable_cores())}{longer}"
    )
