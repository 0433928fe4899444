"""Two network namespaces with a wide area between them: packets take their time, some are lost, or none pass.

Linux' own netem is not in every kernel. Here a process takes the packets of a TUN device in each namespace
and hands them on to the other one, so that TCP on either side meets a long way as it would for real. It needs
root, `ip` and /dev/net/tun.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
MTU_BYTES = 1500
MOST_WAITING = 20_000
"""The packets on their way; those beyond are lost, as in a router that is full."""
MOST_RECORDED_BYTES = 1 << 28
IDLE_S = 0.5
FIRST = -20
NEAR, WIDE = "10.98.{}.{}", "10.99.0.{}"
"""Addresses of a namespace by its number from 1: towards us (we are 1, it is 2), and towards the other."""


@dataclass(slots=True)
class Direction:
    """The packets from one device to the other, each with when it is there."""

    reads: int
    writes: int
    waiting: deque[tuple[float, bytes]] = field(default_factory=deque)


class Forwarder:
    """Hands packets on until its standard input ends; a line of that is a command, and is answered by one.

    delay S, loss SHARE, cut, mend, record, crossed WORD…: the last one says in how many of the packets since
    `record` one of the words stands.
    """

    def __init__(self, devices: Sequence[int]) -> None:
        first, second = devices
        self._directions = (Direction(first, second), Direction(second, first))
        self._delay_s = self._loss = 0.0
        self._is_cut = False
        self._recorded: list[bytes] = []
        self._recorded_bytes = -1
        self._random = random.Random(1)

    def run(self) -> None:
        by_device = {direction.reads: direction for direction in self._directions}
        stdin = sys.stdin.fileno()
        while True:
            ready, _, _ = select.select([stdin, *by_device], [], [], self._pause_s())
            for device in ready:
                if device == stdin:
                    line = sys.stdin.readline()
                    if not line:
                        return
                    print(self._obey(*line.split()), flush=True)
                else:
                    self._take(by_device[device])
            for direction in self._directions:
                self._deliver(direction)

    def _pause_s(self) -> float:
        firsts = [direction.waiting[0][0] for direction in self._directions if direction.waiting]
        return max(0.0, min(firsts) - time.monotonic()) if firsts else IDLE_S

    def _take(self, direction: Direction) -> None:
        try:
            while True:
                packet = os.read(direction.reads, MTU_BYTES + 100)
                if self._is_cut or self._random.random() < self._loss:
                    continue
                if len(direction.waiting) < MOST_WAITING:
                    direction.waiting.append((time.monotonic() + self._delay_s, packet))
                if 0 <= self._recorded_bytes < MOST_RECORDED_BYTES:
                    self._recorded.append(packet)
                    self._recorded_bytes += len(packet)
        except BlockingIOError:
            return

    def _deliver(self, direction: Direction) -> None:
        now_s = time.monotonic()
        while direction.waiting and direction.waiting[0][0] <= now_s:
            _, packet = direction.waiting.popleft()
            if not self._is_cut:
                os.write(direction.writes, packet)

    def _obey(self, command: str, *words: str) -> str:
        match command:
            case "delay":
                self._delay_s = float(words[0])
            case "loss":
                self._loss = float(words[0])
            case "cut" | "mend":
                self._is_cut = command == "cut"
            case "record":
                self._recorded, self._recorded_bytes = [], 0
            case "crossed":
                wanted = [word.encode() for word in words]
                return str(sum(any(word in packet for word in wanted) for packet in self._recorded))
            case _:
                raise ValueError(f"there is no command {command}")
        return "done"


def open_device(name: str) -> int:
    """Make a TUN device of ours, and return what its packets are read from."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN | IFF_NO_PI))
    return device


def run_ip(*arguments: str) -> None:
    """Raises CalledProcessError."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class WideArea:
    """The way between two namespaces, as its forwarder is told."""

    def __init__(self, namespaces: tuple[str, str], ask: Callable[[str], str]) -> None:
        self.namespaces = namespaces
        self._ask = ask

    def set_round_trip(self, seconds: float, loss: float = 0.0) -> None:
        self._ask(f"delay {seconds / 2}")
        self._ask(f"loss {loss}")

    def cut(self) -> None:
        self._ask("cut")

    def mend(self) -> None:
        self._ask("mend")

    def record(self) -> None:
        self._ask("record")

    def packets_with(self, words: Sequence[str]) -> int:
        """Return in how many packets since `record` one of the words stands."""
        return int(self._ask(f"crossed {' '.join(words)}"))


@contextmanager
def wide_area(first: str, second: str) -> Iterator[WideArea]:
    """Two namespaces of these names, which are not there before and after."""
    namespaces = (first, second)
    try:
        for number, name in enumerate(namespaces, 1):
            run_ip("netns", "add", name)
            run_ip("-n", name, "link", "set", "lo", "up")
            ours, its = f"pk{number}us", f"pk{number}it"
            run_ip("link", "add", ours, "type", "veth", "peer", "name", its, "netns", name)
            run_ip("addr", "add", f"{NEAR.format(number, 1)}/24", "dev", ours)
            run_ip("link", "set", ours, "up")
            run_ip("-n", name, "addr", "add", f"{NEAR.format(number, 2)}/24", "dev", its)
            run_ip("-n", name, "link", "set", its, "up")
        with _forwarder(namespaces) as ask:
            yield WideArea(namespaces, ask)
    finally:  # a namespace goes with its last process, and would keep its link until then
        for number, name in enumerate(namespaces, 1):
            for arguments in (("link", "del", f"pk{number}us"), ("netns", "del", name)):
                subprocess.run(["ip", *arguments], check=False, capture_output=True)


@contextmanager
def _forwarder(namespaces: Sequence[str]) -> Iterator[Callable[[str], str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.chaos.wide_area", *namespaces],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def ask(command: str) -> str:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{command}\n")
        process.stdin.flush()
        answer = process.stdout.readline().strip()
        if not answer:
            raise AssertionError("the wide area has ended")
        return answer

    try:
        assert process.stdout.readline().strip() == "ready"
        yield ask
    finally:
        process.stdin.close()
        process.wait(10)
        process.stdout.close()


def main(first: str, second: str) -> None:
    devices = []
    for number, namespace in enumerate((first, second), 1):
        name = f"pkwide{number}"
        devices.append(open_device(name))
        run_ip("link", "set", name, "netns", namespace)
        address, peer = WIDE.format(number), WIDE.format(3 - number)
        run_ip("-n", namespace, "addr", "add", address, "peer", peer, "dev", name)
        run_ip("-n", namespace, "link", "set", name, "mtu", str(MTU_BYTES), "up")
    os.nice(FIRST)  # as a network is: nobody takes its time
    print("ready", flush=True)
    Forwarder(devices).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
