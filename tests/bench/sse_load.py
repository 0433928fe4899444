"""A client that costs little: streams of completions as server-sent events, read without being parsed.

    python -m tests.bench.sse_load --address HOST:PORT --streams N --connections N --prompt-tokens N \
        --output-tokens N --seconds S

Each stream has a connection of its own, so that `--connections` is their number too. It prints the events
that have come in that time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import cast

import uvloop

EVENT = b"data: "


class SseConnection(asyncio.Protocol):
    """One connection with one answer under way."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.events = 0
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("asyncio.WriteTransport", transport).write(
            self._request
        )  # uvloop's are of no class of asyncio's

    def data_received(self, data: bytes) -> None:
        self.events += data.count(EVENT)
        if not self.events and not data.startswith(b"HTTP/1.1 200 ") and not self.failed.done():
            self.failed.set_exception(ConnectionError(f"the server answered {data[:200]!r}"))

    def connection_lost(self, error: Exception | None) -> None:
        if not self.failed.done():
            self.failed.set_exception(error or ConnectionResetError("the server closed the connection"))


async def load(options: argparse.Namespace) -> dict[str, int]:
    host, _, port = options.address.rpartition(":")
    body = json.dumps(
        {
            "prompt": [3 * index % 300 + 20 for index in range(options.prompt_tokens)],
            "max_tokens": options.output_tokens,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {options.address}\r\nContent-Type: application/json\r\n"
    request = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    loop = asyncio.get_running_loop()
    connections = [
        (await loop.create_connection(lambda: SseConnection(request), host, int(port)))[1]
        for _ in range(options.streams)
    ]
    failures = [connection.failed for connection in connections]
    done, _ = await asyncio.wait(failures, timeout=options.seconds, return_when=asyncio.FIRST_COMPLETED)
    for failure in done:
        failure.result()
    return {"events": sum(connection.events for connection in connections)}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--address", required=True)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=10.0)
    print(json.dumps(uvloop.run(load(parser.parse_args()))))


if __name__ == "__main__":
    main()
