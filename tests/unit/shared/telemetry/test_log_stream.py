"""A process whose log cannot be written goes on."""

from __future__ import annotations

import json
import logging as library_logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from shared.telemetry import logging


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    config, root = structlog.get_config(), library_logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    structlog.configure(**config)
    root.handlers = handlers
    root.setLevel(level)


def test_a_full_disk_costs_lines_and_the_first_one_behind_them_says_how_many(tmp_path: Path) -> None:
    handle, log = os.open("/dev/full", os.O_WRONLY), os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    with os.fdopen(handle, "w", buffering=1) as stream:
        logging.configure("info", "decode", "decode-0", stream)
        structlog.get_logger().info("first")
        structlog.get_logger().info("second")
        os.dup2(log, handle)
        structlog.get_logger().info("third")
        structlog.get_logger().info("fourth")
    os.close(log)
    said = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    told = {line["event"]: line.get("unwritten") for line in said}
    assert (told["third"], told["fourth"]) == (2, None)
