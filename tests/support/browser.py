"""A real browser without a screen: Chromium, driven over its DevTools protocol; tests skip without."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.wait import until

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
START_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 150.0
UNTIL_TIMEOUT_S = 60.0
MAX_MESSAGE_BYTES = 1 << 26
DESKTOP, PHONE = (1280, 900), (390, 844)
OPTIONS = (
    "--headless=new",
    "--remote-debugging-port=0",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--disable-gpu",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)


def browser_path() -> str:
    """Return where it is; skip the test where it is not."""
    named = os.environ.get("PENSTOCK_TEST_BROWSER")
    found = named or next((path for name in NAMES if (path := shutil.which(name))), None)
    if not found:
        pytest.skip("no Chromium: install the package chromium, or say where in PENSTOCK_TEST_BROWSER")
    return found


class Page:
    """One tab. `troubles` are what its console complains of; `asked` are the addresses that it asked for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._open: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        self.troubles: list[str] = []
        self.asked: list[str] = []

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        self._open[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(CALL_TIMEOUT_S):
            return await self._open[number]

    async def read_events(self) -> None:
        async for message in self._socket:
            event = json.loads(message.data)
            if "id" in event:
                self._take_answer(event)
            else:
                self._take_event(event["method"], event["params"])

    def _take_answer(self, event: dict[str, Any]) -> None:
        answer = self._open.pop(event["id"])
        if answer.cancelled():
            return
        if "error" in event:
            answer.set_exception(AssertionError(event["error"]["message"]))
        else:
            answer.set_result(event["result"])

    def _take_event(self, method: str, params: dict[str, Any]) -> None:
        match method:
            case "Page.loadEventFired":
                self._loaded.set()
            case "Network.requestWillBeSent":
                self.asked.append(params["request"]["url"])
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                self.troubles.append(details.get("exception", {}).get("description", details["text"]))
            case "Log.entryAdded" if params["entry"]["level"] in ("error", "warning"):
                self.troubles.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.troubles.append(str([value.get("value") for value in params["args"]]))

    async def open(self, url: str) -> None:
        self._loaded.clear()
        await self.send("Page.navigate", url=url)
        async with asyncio.timeout(CALL_TIMEOUT_S):
            await self._loaded.wait()

    async def run(self, expression: str) -> Any:
        """The value of an expression, which may be a promise."""
        answer = await self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until an expression is true."""
        try:
            await until(lambda: self.run(f"Boolean({expression})"), UNTIL_TIMEOUT_S)
        except AssertionError as error:
            shown = await self.run("document.body.innerText")
            raise AssertionError(f"never {expression}, with {self.troubles} on {shown}") from error

    async def text(self, selector: str) -> str:
        return str(await self.run(f"document.querySelector({json.dumps(selector)})?.textContent ?? ''"))

    async def click(self, selector: str) -> None:
        await self.run(f"document.querySelector({json.dumps(selector)}).click()")

    async def write(self, text: str) -> None:
        """Into whatever has the focus."""
        await self.send("Input.insertText", text=text)

    async def press(self, key: str, code: int = 0) -> None:
        text = {"Enter": "\r"}.get(key, "")
        down = {"key": key, "code": key, "windowsVirtualKeyCode": code, "text": text}
        await self.send("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **down)
        await self.send("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    async def look_as(self, size: tuple[int, int], *, dark: bool = False) -> None:
        width, height = size
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(self, *, whole: bool = False) -> bytes:
        shot = await self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(shot["data"])


@asynccontextmanager
async def page() -> AsyncIterator[Page]:
    """A tab of a browser of its own, with nothing in it."""
    path = browser_path()
    with tempfile.TemporaryDirectory(prefix="penstock-browser-", ignore_cleanup_errors=True) as folder:
        sandbox = ("--no-sandbox",) if os.geteuid() == 0 else ()
        process = await asyncio.create_subprocess_exec(
            *(path, *OPTIONS, *sandbox, f"--user-data-dir={folder}", "about:blank"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            port = await _port_in(Path(folder) / "DevToolsActivePort", lambda: process.returncode is None)
            async with _tab(port) as tab:
                yield tab
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _port_in(file: Path, runs: Callable[[], bool]) -> int:
    def port() -> int:
        assert runs(), "the browser ended as it began"
        try:
            lines = file.read_text().splitlines()
        except FileNotFoundError:
            return 0
        return int(lines[0]) if len(lines) == 2 else 0

    return int(str(await until(port, START_TIMEOUT_S)))


@asynccontextmanager
async def _tab(port: int) -> AsyncIterator[Page]:
    async with aiohttp.ClientSession() as client:
        async with client.get(f"http://127.0.0.1:{port}/json/list") as response:
            tabs = await response.json()
        address = next(tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page")
        async with client.ws_connect(address, max_msg_size=MAX_MESSAGE_BYTES) as socket:
            made = Page(socket)
            reading = asyncio.create_task(made.read_events(), name="browser-events")
            try:
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await made.send(f"{domain}.enable")
                yield made
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)
