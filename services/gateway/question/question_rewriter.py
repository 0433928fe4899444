"""Rewrite questions before they are searched for: `question_rewriter` under `[gateway]`.

    def rewrite(question: str, history: Sequence[tuple[str, str]]) -> str

`question` is the text, or the last message of a chat; `history` has the messages before it, oldest first,
each as role and text. What is returned is searched for; where that is the question itself, nothing changes. A
function of somebody else runs in a thread of its own, several at a time, and has `rewrite_timeout_ms`. Where
it fails, or is late, the question is searched for as it is.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from hashlib import blake2b
from types import ModuleType

import structlog

from services.gateway.config import GatewayConfig
from services.gateway.question import follow_ups
from shared.config.fields import ConfigError
from shared.deadline import Deadline

log = structlog.get_logger()

NONE, HISTORY = "none", "history"
MAX_RUNNING = 16
"""Calls of somebody else's function, also of those that nobody waits for any more."""
SOURCE_DIGEST_BYTES = 16
REWRITE_FAILED = "the question was searched for as it is, because its rewriting failed"

History = Sequence[tuple[str, str]]
Rewrite = Callable[[str, History], str]


class RewriteError(Exception):
    """The reason why there is no rewritten question."""


@dataclass(frozen=True, slots=True)
class RewrittenQuestion:
    """`warning` is "" where nothing went wrong."""

    text: str
    warning: str = ""


class QuestionRewriter:
    def __init__(self, rewrite: Rewrite | None, identity: str, timeout_s: float, *, threaded: bool) -> None:
        """`rewrite` None: questions stay as they are. `identity` is another one where questions may come to
        be rewritten in another way."""
        self.identity = identity
        self._rewrite = rewrite
        self._timeout_s = timeout_s
        self._threaded = threaded
        self._room = threading.BoundedSemaphore(MAX_RUNNING)

    @classmethod
    def of(cls, config: GatewayConfig) -> QuestionRewriter:
        """Raises ConfigError for a function that there is not, or that cannot be called so."""
        said = config.question_rewriter
        if said == NONE:
            return cls(None, "", 0.0, threaded=False)
        if said == HISTORY:
            return cls(follow_ups.with_history, _identity(said, follow_ups), 0.0, threaded=False)
        module, function = _load(said)
        return cls(function, _identity(said, module), config.rewrite_timeout_ms / 1e3, threaded=True)

    async def rewrite(self, question: str, history: History, end: Deadline) -> RewrittenQuestion:
        """Never later than `end`."""
        if self._rewrite is None:
            return RewrittenQuestion(question)
        try:
            if self._threaded:
                made = await self._rewrite_in_thread(self._rewrite, question, history, end)
            else:
                made = self._rewrite(question, history)
        except RewriteError as error:
            log.warning("question_not_rewritten", error=str(error))
            return RewrittenQuestion(question, REWRITE_FAILED)
        return RewrittenQuestion(made)

    async def _rewrite_in_thread(
        self, rewrite: Rewrite, question: str, history: History, end: Deadline
    ) -> str:
        if not self._room.acquire(blocking=False):
            raise RewriteError(f"{MAX_RUNNING} calls of the rewriter run already")
        done: Future[object] = Future()
        done.set_running_or_notify_cancel()  # so that nobody who leaves makes it one that cannot be set
        done.add_done_callback(lambda _: self._room.release())
        # A daemon: what hangs in it must not keep the gateway from ending.
        threading.Thread(
            target=_call, args=(done, rewrite, question, history), name="rewrite", daemon=True
        ).start()
        try:
            made = await asyncio.wait_for(asyncio.wrap_future(done), min(self._timeout_s, end.remaining_s()))
        except TimeoutError as error:
            raise RewriteError("the rewriter was too slow; it has rewrite_timeout_ms") from error
        if not isinstance(made, str):
            raise RewriteError(f"the rewriter returned {type(made).__name__} and no text")
        if not made.strip():
            raise RewriteError("the rewriter returned a blank text")
        try:
            made.encode()
        except UnicodeEncodeError as error:
            raise RewriteError("the rewriter returned lone surrogates") from error
        return made


def _call(done: Future[object], rewrite: Rewrite, question: str, history: History) -> None:
    try:
        made = rewrite(question, history)
    except BaseException as error:
        log.debug("rewriter_raised", exc_info=error)  # it may repeat the question
        done.set_exception(RewriteError(f"the rewriter raised {type(error).__name__}"))
    else:
        done.set_result(made)


def _load(said: str) -> tuple[ModuleType, Rewrite]:
    where = f"question_rewriter of the gateway is {said!r}"
    module_name, separator, name = said.partition(":")
    if not (separator and module_name and name):
        raise ConfigError(f"{where}: write {HISTORY}, {NONE}, or MODULE:FUNCTION")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise ConfigError(
            f"{where}, and {module_name} cannot be imported ({type(error).__name__}: {error}): put it where "
            "Python looks, as PYTHONPATH says"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ConfigError(f"{where}, and {module_name} has no function {name}")
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"{where}, which is a coroutine: name a plain function, it runs in a thread")
    try:
        inspect.signature(function).bind("", ())
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}, which cannot be called with a question and its history") from error
    return module, function


def _identity(said: str, module: ModuleType) -> str:
    """Its name, and what its module says."""
    try:
        source = inspect.getsource(module)
    except (OSError, TypeError):  # compiled
        source = ""
    return f"{said} {blake2b(source.encode(), digest_size=SOURCE_DIGEST_BYTES).hexdigest()}"
