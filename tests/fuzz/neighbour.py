"""Another client beside the inputs: what it waits from token to token says whether they take from others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc

from protos.penstock.v1 import inference_pb2 as pb
from protos.penstock.v1 import inference_pb2_grpc as rpc
from tests.fuzz.target import Fault
from tests.support.percentile import percentile

ORDINARY_S = 5.0
"""The time for which ordinary calls stand beside it first, one after another as inputs are."""
MAX_TIMES = 1.5
"""Times the p99 beside ordinary calls that it may have beside hostile ones."""
NOTICED_MS = 25.0
"""A p99 below this breaks nothing: other programs of a machine cost a stream of 1 ms a token as much."""
CALL_S = 60.0
ORDINARY_TOKENS = 4
STREAM_TOKENS = 400


@dataclass(slots=True)
class Gaps:
    """The times from token to token of its streams, and how those ended that were not to."""

    ms: list[float]
    broken: list[str]

    @property
    def p99_ms(self) -> float:
        return percentile(self.ms, 0.99)


class Neighbour:
    """Streams one long answer after another from a thread of its own, but where it is silent."""

    def __init__(self) -> None:
        self.ordinary, self.hostile = Gaps([], []), Gaps([], [])
        self._gaps = self.ordinary
        self._speaks, self._rests = threading.Event(), threading.Event()
        self._over = False
        self._call: Any = None  # of grpc, which has no types for it
        self._changing = threading.Lock()

    @contextmanager
    def beside(self, address: str) -> Iterator[None]:
        """Listen to the gateway there, first beside ordinary calls."""
        with grpc.insecure_channel(address) as channel:
            stub: Any = rpc.InferenceStub(channel)  # type: ignore[arg-type]  # the stubs know grpc.aio alone
            thread = threading.Thread(target=self._stream, args=(stub,), name="neighbour", daemon=True)
            thread.start()
            self._speaks.set()
            try:
                end_s, number = time.monotonic() + ORDINARY_S, 0
                while time.monotonic() < end_s:
                    number += 1
                    for _ in stub.Generate(_ask(number, ORDINARY_TOKENS), timeout=CALL_S):
                        pass
                self._gaps = self.hostile
                yield
            finally:
                self._over = True
                self._hush()
                self._speaks.set()
                thread.join(CALL_S)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Hold nothing meanwhile."""
        self._hush()
        if not self._rests.wait(CALL_S):
            raise Fault(f"a stream that was cancelled has not ended in {CALL_S:g} s")
        try:
            yield
        finally:
            self._speaks.set()

    def check(self) -> None:
        """Raise Fault where hostile calls took from it what ordinary ones do not."""
        if self.hostile.broken:
            raise Fault(f"{len(self.hostile.broken)} streams of a neighbour broke: {self.hostile.broken[0]}")
        before, beside = self.ordinary.p99_ms, self.hostile.p99_ms
        if beside > max(MAX_TIMES * before, NOTICED_MS):
            raise Fault(f"p99 of a neighbour's tokens {beside:.1f} ms, {before:.1f} beside ordinary calls")

    def _hush(self) -> None:
        with self._changing:
            self._speaks.clear()
            if self._call is not None:
                self._call.cancel()

    def _stream(self, stub: Any) -> None:
        number = 0
        while not self._over:
            number += 1
            with self._changing:
                self._call = None
                if self._speaks.is_set():
                    self._rests.clear()
                    self._call = stub.Generate(_ask(-number, STREAM_TOKENS), timeout=CALL_S)
                else:
                    self._rests.set()
            if self._call is not None:
                self._listen(self._call, self._gaps)
            else:
                self._speaks.wait()

    def _listen(self, call: Any, gaps: Gaps) -> None:
        last_s = None
        try:
            for event in call:
                if event.WhichOneof("event") != "text":
                    continue
                now_s = time.monotonic()
                if last_s is not None:
                    gaps.ms.append(1e3 * (now_s - last_s))
                last_s = now_s
        except grpc.RpcError as error:
            if self._speaks.is_set() and not self._over:
                gaps.broken.append(str(error)[:400])


def _ask(number: int, tokens: int) -> pb.GenerateRequest:
    """Make a request that no other is like, so that nothing of it is kept or shared."""
    sampling = pb.Sampling(max_tokens=tokens, temperature=0.8, seed=abs(number), ignore_eos=True)
    return pb.GenerateRequest(text=f"neighbour {number}", sampling=sampling)
