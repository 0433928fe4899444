from __future__ import annotations

import errno
import io
import json
import os
import threading
from pathlib import Path

from services.launcher.processes.log_lines import CUT_MARK, LineSplitter, LineWriter
from tests.support.wait import until

OBJECT = {
    "event": "ready",
    "role": "decode",
    "instance": "decode-0",
    "level": "info",
    "ts": "2026-01-01T12:30:01.123456Z",
}


def test_objects_of_services_are_shown_as_text_where_people_read() -> None:
    stream = io.BytesIO()
    writer = LineWriter(stream, text_roles={"decode"})
    said = json.dumps(dict(OBJECT, event="broken", word="two words", exception="line 1\nline 2")).encode()
    for name in ("decode-0", "gateway-0"):
        writer.write(name, said)
    writer.write("decode-0", b"hello")
    writer.write("decode-0", json.dumps(dict(OBJECT, event="\ud800")).encode())  # no text at all
    writer.close()
    assert stream.getvalue() == (
        b'decode-0 | 12:30:01.123 info    broken word="two words"\ndecode-0 | line 1\ndecode-0 | line 2\n'
        b"gateway-0 | " + said + b"\ndecode-0 | hello\ndecode-0 | 12:30:01.123 info    \\ud800\n"
    )


def test_an_object_that_does_not_say_who_and_when_is_a_line_like_others() -> None:
    stream = io.BytesIO()
    writer = LineWriter(stream, as_json=True)
    writer.write("decode-0", b'{"event": "x"}', "warning")
    writer.close()
    (line,) = map(json.loads, stream.getvalue().splitlines())
    assert (line["instance"], line["level"], line["event"]) == ("decode-0", "warning", '{"event": "x"}')


def test_lines_come_out_whole_however_the_bytes_arrive() -> None:
    text = b"first\nsecond line\r\n\nlast"
    for size in range(1, len(text) + 1):
        splitter = LineSplitter()
        lines = [line for at in range(0, len(text), size) for line in splitter.feed(text[at : at + size])]
        assert [*lines, *splitter.flush()] == [b"first", b"second line", b"", b"last"]


def test_an_endless_line_is_cut_with_a_mark_and_loses_nothing() -> None:
    splitter = LineSplitter(limit_bytes=8)
    pieces = [*splitter.feed(b"x" * 20), *splitter.feed(b"yz\n"), *splitter.flush()]
    assert all(len(piece) <= 8 + len(CUT_MARK) for piece in pieces)
    assert b"".join(piece.removesuffix(CUT_MARK) for piece in pieces) == b"x" * 20 + b"yz"


def test_every_line_gets_its_name_and_no_colour_without_a_terminal() -> None:
    stream = io.BytesIO()
    writer = LineWriter(stream)
    writer.write("decode-0", b"hello")
    writer.write("gateway-0", b"there")
    writer.close()
    assert stream.getvalue() == b"decode-0 | hello\ngateway-0 | there\n"


def test_colour_goes_around_the_name_alone() -> None:
    stream = io.BytesIO()
    writer = LineWriter(stream, colour=True)
    writer.write("decode-0", b"hello")
    writer.close()
    assert stream.getvalue() == b"\x1b[36mdecode-0 |\x1b[0m hello\n"


def test_as_json_every_line_is_an_object_and_one_that_is_already_is_passed_on() -> None:
    stream = io.BytesIO()
    writer = LineWriter(stream, as_json=True)
    said = b'{"ts": "now", "level": "info", "event": "ready", "role": "decode", "instance": "decode-0"}'
    writer.write("decode-0", said)
    writer.write("nats", b"[1] [WRN] something")
    writer.write("decode-0", b"{not json")
    writer.close()
    first, *others = stream.getvalue().splitlines()
    assert first == said
    assert [(line["role"], line["instance"], line["event"]) for line in map(json.loads, others)] == [
        ("nats", "nats", "[1] [WRN] something"),
        ("decode", "decode-0", "{not json"),
    ]
    assert all(list(line) == list(json.loads(said)) for line in map(json.loads, others))


async def test_lines_that_a_full_disk_did_not_take_are_told_of_when_there_is_room(tmp_path: Path) -> None:
    stream = os.fdopen(os.open("/dev/full", os.O_WRONLY), "wb", buffering=0)
    log = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    told: list[OSError] = []
    writer = LineWriter(stream, on_unwritten=told.append)
    writer.write("decode-0", b"lost")
    writer.write("decode-0", b"lost too")
    await until(lambda: writer._unwritten == 2)
    assert [error.errno for error in told] == [errno.ENOSPC]
    os.dup2(log, stream.fileno())
    writer.write("decode-0", b"there")
    writer.close()
    stream.close()
    os.close(log)
    said = (tmp_path / "log").read_bytes()
    assert said == b"penstock | 2 log lines could not be written\ndecode-0 | there\n"


class StuckStream(io.BytesIO):
    """A terminal that stands still until `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.reached = threading.Event()
        self.go = threading.Event()

    def write(self, data: object) -> int:
        self.reached.set()
        assert self.go.wait(60)
        return super().write(data)  # type: ignore[arg-type]  # BytesIO takes any buffer


def test_a_terminal_that_stands_still_never_blocks_and_the_drop_is_told() -> None:
    stream = StuckStream()
    writer = LineWriter(stream, limit=2)
    writer.write("a", b"0")
    assert stream.reached.wait(60)
    for number in range(1, 6):
        writer.write("a", b"%d" % number)
    stream.go.set()
    writer.close()
    assert stream.getvalue() == b"a | 0\na | 1\na | 2\n"
    writer = LineWriter(stream, limit=2)
    writer.close()


def test_the_drop_is_told_with_the_next_line_that_has_room() -> None:
    stream = StuckStream()
    writer = LineWriter(stream, limit=4)
    writer.write("a", b"0")
    assert stream.reached.wait(60)
    for number in range(1, 8):
        writer.write("a", b"%d" % number)
    stream.go.set()
    while b"| 4" not in stream.getvalue():
        threading.Event().wait(0.001)
    writer.write("a", b"8")
    writer.close()
    assert stream.getvalue().endswith(
        b"penstock | 3 log lines dropped: they came faster than they are written\na | 8\n"
    )


def test_a_reader_that_went_away_does_not_stop_the_writer() -> None:
    stream = io.BytesIO()
    writer = LineWriter(stream)
    stream.close()
    writer.write("a", b"0")
    writer.write("a", b"1")
    writer.close()
