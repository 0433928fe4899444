"""A hub of models on this machine, as its client library sees one."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE = (".safetensors", ".gguf")


class Hub(http.server.ThreadingHTTPServer):
    """Has the model `name` with the files of `folder`.

    `held`: files whose second half waits for `go_on`, and never comes once `cuts` is set. `wrong`: files with
    another content than they are stated to have. `moved_to`: where it sends whoever wants a file.
    """

    daemon_threads = True

    def __init__(self, name: str, folder: Path, held: tuple[str, ...]) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.name = name
        self.folder = folder
        self.held = held
        self.wrong: tuple[str, ...] = ()
        self.cuts = False
        self.moved_to = ""
        self.ranges: list[str] = []
        self.authorized: list[str | None] = []
        self.siblings: list[dict[str, Any]] = []
        self.half_sent = threading.Event()
        self.go_on = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def described(self) -> dict[str, Any]:
        files = sorted(self.folder.iterdir())
        siblings = [_stated(file) for file in files] + self.siblings
        return {"id": self.name, "sha": COMMIT, "siblings": siblings}

    def tree(self) -> list[dict[str, Any]]:
        return [
            {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": _oid(file)}
            for file in sorted(self.folder.iterdir())
        ]


@contextmanager
def running_hub(name: str, folder: Path, held: tuple[str, ...] = ()) -> Iterator[Hub]:
    hub = Hub(name, folder, held)
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        hub.go_on.set()
        hub.shutdown()
        thread.join()
        hub.server_close()


def _stated(file: Path) -> dict[str, Any]:
    """As the hub states a file where it is asked for more than names: large ones by their sha256."""
    content = file.read_bytes()
    stated: dict[str, Any] = {"rfilename": file.name, "size": len(content)}
    stated["blobId"] = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    if file.suffix in LARGE:
        sha256 = hashlib.sha256(content).hexdigest()
        stated["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 128}
    return stated


def _oid(file: Path) -> str:
    return hashlib.sha1(file.read_bytes()).hexdigest()


class _Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        hub, path = self.server, self.path.partition("?")[0]
        if "/resolve/" in path:
            hub.authorized.append(self.headers.get("Authorization"))
        file = hub.folder / path.rpartition("/")[2]
        if path.startswith(f"/api/models/{hub.name}/tree/"):
            self._send(json.dumps(hub.tree()).encode(), {}, with_body=with_body)
        elif path.startswith(f"/api/models/{hub.name}"):
            self._send(json.dumps(hub.described()).encode(), {}, with_body=with_body)
        elif hub.moved_to and "/resolve/" in path:
            self.send_response(302)
            self.send_header("Location", f"{hub.moved_to}{path}")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif path.startswith(f"/{hub.name}/resolve/") and file.is_file():
            told = {"ETag": f'"{_oid(file)}"', "X-Repo-Commit": COMMIT}
            body = file.read_bytes()
            if file.name in hub.wrong:
                body = bytes(len(body))
            self._send(body, told, with_body=with_body, held=file.name in hub.held)
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "EntryNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def _send(self, body: bytes, told: dict[str, str], *, with_body: bool, held: bool = False) -> None:
        wanted = self.headers.get("Range", "")
        if with_body and wanted:
            self.server.ranges.append(wanted)
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
            told = {**told, "Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}"}
            body = body[start:]
        self.send_response(206 if with_body and wanted else 200)
        for name, value in {**told, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if not with_body:
            return
        half = max(1, len(body) // 2) if held else len(body)
        self.wfile.write(body[:half])
        if held:
            self.wfile.flush()
            self.server.half_sent.set()
            self.server.go_on.wait()
            if self.server.cuts:
                self.close_connection = True
                return
            with contextlib.suppress(OSError):  # nobody waits for it any more
                self.wfile.write(body[half:])

    def log_message(self, *args: object) -> None:
        """Quiet."""
