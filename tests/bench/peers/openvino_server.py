"""OpenVINO GenAI's continuous batching as a server of streamed chats, in the environment of OpenVINO alone.

    PYTHON openvino_server.py --model DIR --port PORT --threads N --streams N

OpenVINO Model Server, which wraps the same pipeline in C++, comes as a container or an archive, not by pip.
This one steps the pipeline in a thread, and writes an event for each token: a line of JSON is what it adds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import openvino as ov  # type: ignore[import-not-found]  # only in this peer's environment
import openvino_genai as genai  # type: ignore[import-not-found]  # only in this peer's environment
from aiohttp import web

CHUNK_TOKENS = 4096
KV_CACHE_GB = 1
IDLE_S = 0.05


@dataclass(slots=True)
class Stream:
    """One request: its handle at the pipeline, and the tokens that its answer has to write."""

    handle: Any
    tokens: asyncio.Queue[int | None] = field(default_factory=lambda: asyncio.Queue(maxsize=1 << 16))


class Pipeline:
    """Steps in a thread of its own while there is something to compute."""

    def __init__(self, options: argparse.Namespace, loop: asyncio.AbstractEventLoop) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = KV_CACHE_GB
        scheduler.max_num_batched_tokens = CHUNK_TOKENS
        scheduler.max_num_seqs = options.streams
        scheduler.enable_prefix_caching = True
        properties = {"INFERENCE_PRECISION_HINT": "bf16", "INFERENCE_NUM_THREADS": options.threads}
        self._pipeline = genai.ContinuousBatchingPipeline(str(options.model), scheduler, "CPU", properties)
        self._loop = loop
        self._new: list[tuple[list[int], genai.GenerationConfig, Callable[[Stream], None]]] = []
        self._lock = threading.Condition()
        self._numbers = count()
        self._streams: list[Stream] = []
        self.tokenizer = self._pipeline.get_tokenizer()
        threading.Thread(target=self._run, daemon=True).start()

    async def add(self, ids: list[int], config: genai.GenerationConfig) -> Stream:
        added: asyncio.Future[Stream] = self._loop.create_future()
        with self._lock:
            self._new.append((ids, config, lambda stream: self._tell(added.set_result, stream)))
            self._lock.notify()
        return await added

    def _tell(self, tell: Callable[[Any], None], value: Any) -> None:
        self._loop.call_soon_threadsafe(tell, value)

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._new and not self._streams:
                    self._lock.wait(IDLE_S)
                new, self._new = self._new, []
            for ids, config, tell in new:
                handle = self._pipeline.add_request(next(self._numbers), ov.Tensor([ids]), config)
                stream = Stream(handle)
                self._streams.append(stream)
                tell(stream)
            if self._pipeline.has_non_finished_requests():
                self._pipeline.step()
            self._streams = [stream for stream in self._streams if self._hand_on(stream)]

    def _hand_on(self, stream: Stream) -> bool:
        """Hand its new tokens to its answer; return whether more may come."""
        while stream.handle.can_read():
            for output in stream.handle.read().values():
                for token in output.generated_ids:
                    self._tell(stream.tokens.put_nowait, token)
        if stream.handle.get_status() == genai.GenerationStatus.RUNNING:
            return True
        self._tell(stream.tokens.put_nowait, None)
        return False


class Server:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._pipeline: Pipeline | None = None

    async def start(self, _: web.Application) -> None:
        self._pipeline = Pipeline(self._options, asyncio.get_running_loop())

    async def health(self, _: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": self._options.model.name}]})

    async def chat(self, request: web.Request) -> web.StreamResponse:
        assert self._pipeline is not None
        body = await request.json()
        tokenizer = self._pipeline.tokenizer
        text = tokenizer.apply_chat_template(body["messages"], add_generation_prompt=True)
        ids = tokenizer.encode(text, add_special_tokens=False).input_ids.data[0].tolist()
        config = genai.GenerationConfig()
        config.max_new_tokens = body["max_tokens"]
        config.ignore_eos = bool(body.get("ignore_eos"))
        config.do_sample = False
        stream = await self._pipeline.add(ids, config)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        answer: list[int] = []
        written = ""
        try:
            while (token := await stream.tokens.get()) is not None:
                answer.append(token)
                said = tokenizer.decode(answer)
                if len(said) > len(written) and not said.endswith("\ufffd"):
                    await _write(response, {"choices": [{"delta": {"content": said[len(written) :]}}]})
                    written = said
        except (ConnectionError, asyncio.CancelledError):
            stream.handle.cancel()
            raise
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(answer)}
        await _write(response, {"choices": [], "usage": usage})
        await response.write(b"data: [DONE]\n\n")
        return response


async def _write(response: web.StreamResponse, event: dict[str, Any]) -> None:
    await response.write(f"data: {json.dumps(event)}\n\n".encode())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--streams", type=int, required=True)
    options = parser.parse_args()
    server = Server(options)
    app = web.Application(client_max_size=64 << 20)
    app.on_startup.append(server.start)
    app.router.add_get("/health", server.health)
    app.router.add_get("/v1/models", server.models)
    app.router.add_post("/v1/chat/completions", server.chat)
    web.run_app(app, host="127.0.0.1", port=options.port, print=None)


if __name__ == "__main__":
    main()
