"""A client that costs little: streams of `Generate` in a closed loop, read as HTTP/2 frames.

    python -m tests.bench.grpc_load --address HOST:PORT --streams N --connections N --prompt-tokens N \
        --output-tokens N --warm-s S --seconds S

It prints "measuring" when it is warm and one JSON object at the end. gRPC's own client takes as much of a
core for a message as its server; this one leaves the cores to whom it measures.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import struct
import time
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import cast

import uvloop
from google.protobuf.message import DecodeError

from protos.penstock.v1 import inference_pb2 as pb
from tests.support.client import request
from tests.support.percentile import percentile

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
END_STREAM, ACK, END_HEADERS = 1, 1, 4
FRAME_HEADER_BYTES = 9
MESSAGE_HEADER_BYTES = 5
INITIAL_WINDOW_SETTING = 4
WIDEST_WINDOW = (1 << 31) - 1
FIRST_WINDOW = (1 << 16) - 1
PATH = b"/penstock.v1.Inference/Generate"


@dataclass(slots=True)
class Readings:
    """Of the time in which `measuring` is set."""

    measuring: bool = False
    requests: int = 0
    tokens: int = 0
    messages: int = 0
    gaps_s: list[float] = field(default_factory=list)
    ttfts_s: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Answer:
    started_s: float
    last_s: float = 0.0
    tokens: int = 0
    rest: bytes = b""


class LoadConnection(asyncio.Protocol):
    """One connection with `streams` answers under way at any time."""

    def __init__(self, streams: int, message: bytes, output_tokens: int, readings: Readings) -> None:
        self._streams = streams
        self._body = struct.pack(">?I", False, len(message)) + message
        self._output_tokens = output_tokens
        self._readings = readings
        self._answers: dict[int, _Answer] = {}
        self._ids = count(1, 2)
        self._unread = b""
        self._unacknowledged = 0
        self._transport: asyncio.WriteTransport
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # ---- of asyncio ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's are of no class of asyncio's.
        self._transport = cast("asyncio.WriteTransport", transport)
        settings = struct.pack(">HI", INITIAL_WINDOW_SETTING, WIDEST_WINDOW)
        self._transport.write(
            PREFACE + _frame(SETTINGS, 0, 0, settings) + _window(WIDEST_WINDOW - FIRST_WINDOW)
        )
        for _ in range(self._streams):
            self._ask()

    def data_received(self, data: bytes) -> None:
        try:
            self._read_frames(self._unread + data)
        except (ConnectionError, LookupError, DecodeError) as error:
            self._fail(error)

    def connection_lost(self, error: Exception | None) -> None:
        self._fail(error or ConnectionResetError("the server closed the connection"))

    def close(self) -> None:
        self.failed.cancel()
        self._transport.abort()

    def _fail(self, error: Exception) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    # ---- requests -----------------------------------------------------------------------------------

    def _ask(self) -> None:
        stream = next(self._ids)
        self._answers[stream] = _Answer(time.perf_counter())
        headers = b"".join(
            _header(name, value)
            for name, value in (
                (b":method", b"POST"),
                (b":scheme", b"http"),
                (b":path", PATH),
                (b":authority", b"penstock"),
                (b"te", b"trailers"),
                (b"content-type", b"application/grpc"),
            )
        )
        self._transport.write(
            _frame(HEADERS, END_HEADERS, stream, headers) + _frame(DATA, END_STREAM, stream, self._body)
        )

    # ---- answers ------------------------------------------------------------------------------------

    def _read_frames(self, data: bytes) -> None:
        at, size = 0, len(data)
        while size - at >= FRAME_HEADER_BYTES:
            length = int.from_bytes(data[at : at + 3])
            end = at + FRAME_HEADER_BYTES + length
            if end > size:
                break
            kind, flags = data[at + 3], data[at + 4]
            stream = int.from_bytes(data[at + 5 : at + FRAME_HEADER_BYTES])
            self._read_frame(kind, flags, stream, data[at + FRAME_HEADER_BYTES : end])
            at = end
        self._unread = data[at:]

    def _read_frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == DATA:
            self._unacknowledged += len(payload)
            if self._unacknowledged > WIDEST_WINDOW // 2:
                self._transport.write(_window(self._unacknowledged))
                self._unacknowledged = 0
            self._read_messages(self._answers[stream], payload)
        elif kind == HEADERS and flags & END_STREAM:
            self._end(self._answers.pop(stream))
            self._ask()
        elif kind == PING and not flags & ACK:
            self._transport.write(_frame(PING, ACK, 0, payload))
        elif kind == SETTINGS and not flags & ACK:
            self._transport.write(_frame(SETTINGS, ACK, 0, b""))
        elif kind in (GOAWAY, RST_STREAM):
            raise ConnectionError(f"the server ended stream {stream}: {payload!r}")

    def _read_messages(self, answer: _Answer, payload: bytes) -> None:
        data = answer.rest + payload
        at = 0
        while len(data) - at >= MESSAGE_HEADER_BYTES:
            end = at + MESSAGE_HEADER_BYTES + int.from_bytes(data[at + 1 : at + MESSAGE_HEADER_BYTES])
            if end > len(data):
                break
            self._read_event(answer, pb.GenerateEvent.FromString(data[at + MESSAGE_HEADER_BYTES : end]))
            at = end
        answer.rest = data[at:]

    def _read_event(self, answer: _Answer, event: pb.GenerateEvent) -> None:
        tokens = len(event.text.token_ids)
        if event.HasField("end") and event.end.outcome != pb.OUTCOME_FINISHED:
            raise ConnectionError(f"a request failed: {event.end}")
        if not tokens:
            return
        now_s = time.perf_counter()
        if self._readings.measuring:
            self._readings.tokens += tokens
            self._readings.messages += 1
            if answer.tokens:
                # What comes in one message comes at once: the gap is before its first token.
                self._readings.gaps_s += [now_s - answer.last_s] + [0.0] * (tokens - 1)
            else:
                self._readings.ttfts_s.append(now_s - answer.started_s)
        answer.tokens += tokens
        answer.last_s = now_s

    def _end(self, answer: _Answer) -> None:
        if answer.tokens != self._output_tokens:
            raise ConnectionError(f"an answer of {answer.tokens} tokens instead of {self._output_tokens}")
        self._readings.requests += self._readings.measuring


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def _window(more: int) -> bytes:
    return _frame(WINDOW_UPDATE, 0, 0, more.to_bytes(4))


def _header(name: bytes, value: bytes) -> bytes:
    """HPACK's literal that nobody remembers."""
    return b"\x00" + bytes((len(name),)) + name + bytes((len(value),)) + value


async def load(options: argparse.Namespace) -> dict[str, float]:
    prompt = [3 * index % 300 + 20 for index in range(options.prompt_tokens)]
    message = request(prompt, max_tokens=options.output_tokens, ignore_eos=True).SerializeToString()
    host, _, port = options.address.rpartition(":")
    readings = Readings()
    loop = asyncio.get_running_loop()
    connections = []
    for index in range(options.connections):
        streams = options.streams // options.connections + (index < options.streams % options.connections)
        connect = partial(LoadConnection, streams, message, options.output_tokens, readings)
        _, connection = await loop.create_connection(connect, host, int(port))
        connections.append(connection)
    failures = [connection.failed for connection in connections]
    await _hold(failures, options.warm_s)
    readings.measuring = True
    print("measuring", flush=True)
    started = time.perf_counter()
    await _hold(failures, options.seconds)
    seconds = time.perf_counter() - started
    readings.measuring = False
    for connection in connections:
        connection.close()
    return {
        "tokens": readings.tokens,
        "tokens_per_s": readings.tokens / seconds,
        "requests_per_s": readings.requests / seconds,
        "tokens_per_message": readings.tokens / readings.messages,
        "itl_p50_ms": 1e3 * percentile(readings.gaps_s, 0.5),
        "itl_p99_ms": 1e3 * percentile(readings.gaps_s, 0.99),
        "ttft_p50_ms": 1e3 * percentile(readings.ttfts_s, 0.5),
    }


async def _hold(failures: list[asyncio.Future[None]], seconds: float) -> None:
    done, _ = await asyncio.wait(failures, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for failure in done:
        failure.result()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--address", required=True)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--warm-s", type=float, default=2.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    print(json.dumps(uvloop.run(load(parser.parse_args()))))


if __name__ == "__main__":
    main()
