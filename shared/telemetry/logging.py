"""JSON logs on stderr: one object per line with ts, level, event, role, instance, request_id.

Code logs with `structlog.get_logger()`. Prompts, completions and retrieved text are never logged
above debug level.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog
from structlog.typing import EventDict, WrappedLogger

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def configure(level: str, role: str, instance: str, stream: TextIO | None = None) -> None:
    """Set up structlog and the standard library's logging for this process.

    `level` is a key of LEVELS. Calls below it cost one method call that does nothing.
    """
    number = LEVELS[level]

    def identity(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        event.setdefault("role", role)
        event.setdefault("instance", instance)
        return event

    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            identity,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(stream or sys.stderr),
        cache_logger_on_first_use=True,
    )
    root = logging.getLogger()
    root.handlers = [_Forward()]
    # Libraries (asyncio, grpc, transformers) have little to say below a warning.
    root.setLevel(max(number, logging.WARNING))


class _Forward(logging.Handler):
    """Records of the standard library's logging, written like our own."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger().bind(logger=record.name)
        log.log(record.levelno, record.getMessage(), exc_info=record.exc_info)
