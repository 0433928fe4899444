"""Logs on stderr: one JSON object per line with ts, level, event, role, instance, request_id; or as text.

Code logs with `structlog.get_logger()`; lines of one event are bounded (`log_limit`), and a line that
cannot be written fails nobody (`log_stream`). Prompts, completions and retrieved text are never logged above
debug level.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO, cast

import structlog
from structlog.typing import EventDict, WrappedLogger

from shared.telemetry.log_limit import LogLimit
from shared.telemetry.log_stream import LogStream
from shared.telemetry.log_text import log_as_text

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure(
    level: str, role: str, instance: str, stream: TextIO | None = None, *, log_format: str = "json"
) -> None:
    """Set up structlog and the standard library's logging for this process.

    `level` is a key of LEVELS; calls below it cost one method call that does nothing. `log_format` is json or
    text.
    """
    number = LEVELS[level]
    lines = LogStream(stream or sys.stderr)

    def identity(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event.setdefault("role", role)
        event.setdefault("instance", instance)
        return event

    structlog.configure(
        processors=[
            LogLimit(),
            lines,
            structlog.contextvars.merge_contextvars,
            identity,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
            structlog.processors.format_exc_info,
            _as_text if log_format == "text" else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, lines)),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers = [_Forward()]
    # Libraries (asyncio, grpc, transformers) have little to say below a warning.
    root.setLevel(max(number, logging.WARNING))


def _as_text(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    return log_as_text(event)


class _Forward(logging.Handler):
    """Records of the standard library's logging, written like our own."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger().bind(logger=record.name)
        log.log(record.levelno, record.getMessage(), exc_info=record.exc_info)
