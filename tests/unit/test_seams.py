"""Time, chance and threads come through `shared/seams`, in all rooms that a simulation can run.

A read beside the seams makes a run of the simulation differ from the next one under the same seed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dotted_name import dotted_name

REPOSITORY = Path(__file__).resolve().parents[2]

TOOLS = "a tool that a person starts"
PROCESSES = "starts other processes, or waits for them"
SECRETS = "draws what guards something: no simulation may know it before"
OWN_THREAD = "has a thread with waits of its own"
EXEMPT = {
    "services/cli/": TOOLS,
    "services/launcher/": PROCESSES,
    "services/gateway/grpc/": "gRPC's core has its own loop of calls",
    "services/gateway/keys/api_keys.py": SECRETS,
    "services/gateway/question/question_rewriter.py": OWN_THREAD,
    "services/gateway/tracing/span_exporter.py": OWN_THREAD,
    "shared/bus/connection.py": "speaks to a nats-server",
    "shared/bus/credentials.py": SECRETS,
    "shared/engine/measuring/": TOOLS,
    "shared/engine/native/weight_cache.py": PROCESSES,
    "shared/engine/sampling/grammar_source.py": OWN_THREAD,
    "shared/engine/sampling/grammar_trial.py": "measures its own CPU time, in a process that is killed",
    "shared/engine/sampling/lock_time.py": "measures the CPU time of its thread",
    "shared/engine/sampling/mask_threads.py": OWN_THREAD,
    "shared/engine/tensor_parallel/": PROCESSES,
    "shared/files/api_key_file.py": SECRETS,
    "shared/health/watchdog.py": OWN_THREAD,
    "shared/kv/memory/shared_pool.py": SECRETS,
    "shared/models/": TOOLS,
    "shared/process/": "is the life of a process: threads, signals, other processes",
    "shared/retrieval/documents/": PROCESSES,
    "shared/retrieval/index/build.py": "tells the time as the file system does that it compares with",
    "shared/seams/": "is the seam",
    "shared/tasks.py": "is the seam of tasks",
    "shared/telemetry/http.py": OWN_THREAD,
    "shared/text/chat_template.py": "gives a template the date, as its author meant it",
    "shared/text/hub_fetch.py": TOOLS,
    "shared/training/": TOOLS,
}
"""Rooms and files that the law does not cover, each with its reason."""

COVERED = sorted(
    path
    for top in ("services", "shared")
    for path in (REPOSITORY / top).rglob("*.py")
    if "__pycache__" not in path.parts
    and not path.relative_to(REPOSITORY).as_posix().startswith(tuple(EXEMPT))
)

INSTEAD = {
    "time": "SYSTEM_CLOCK of shared/seams/clock.py",
    "random": "CHANCE of shared/seams/chance.py",
    "secrets": "CHANCE of shared/seams/chance.py",
    "uuid": "CHANCE of shared/seams/chance.py",
    "threads": "THREADS.pool of shared/seams/threads.py, or asyncio.to_thread",
    "tasks": "start_task of shared/tasks.py",
    "kept": "a call at each use: a function that is kept outlives its replacement",
}
MODULES = {"time", "random", "secrets", "uuid", "multiprocessing"}
"""Modules of which nothing is to be used."""
SEEDED = {"random.Random", "numpy.random.default_rng"}
"""What is drawn from a seed that it is given is no chance."""
MAKES_THREADS = {
    *(
        "threading.Thread",
        "threading.Timer",
        "multiprocessing.Process",
        "concurrent.futures.ThreadPoolExecutor",
    ),
    *("concurrent.futures.ProcessPoolExecutor", "concurrent.futures.thread.ThreadPoolExecutor"),
    *("_thread.start_new_thread", "multiprocessing.pool.ThreadPool"),
}
DRAWS = {"os.urandom", "os.getrandom"}
NOW = {f"datetime.{name}" for name in ("datetime.now", "datetime.utcnow", "datetime.today", "date.today")}
STARTS_TASKS = {"create_task", "ensure_future", "run_coroutine_threadsafe"}
GROUP = "asyncio.TaskGroup()"
SEAMS = {"SYSTEM_CLOCK", "CHANCE", "THREADS", "BUGGIFY"}

MAY_BREACH = re.compile(
    r"\b(?:time|datetime|random|urandom|getrandom|secrets|uuid|multiprocessing|concurrent|_?thread(?:ing)?"
    rf"|{'|'.join(sorted(STARTS_TASKS | SEAMS))})\b"
)
"""Sources with none of these words need not be parsed."""


def breaches(source: str) -> list[str]:
    """`line: what is used; what to use` of all that passes the seams by."""
    if not MAY_BREACH.search(source):
        return []
    tree = ast.parse(source)
    names = dict(imported(tree))
    groups = set(task_groups(tree))
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute | ast.Name):
            continue
        first, _, rest = dotted_name(node).partition(".")
        full = ".".join(filter(None, (names.get(first, first), rest)))
        kind = ""
        if isinstance(node, ast.Attribute) and first in SEAMS and rest != "replaced_by":
            kind = "" if id(node) in called else "kept"
        elif first in names and full not in SEEDED:
            kind = kind_of(full)
        if not kind and isinstance(node, ast.Attribute) and node.attr in STARTS_TASKS and first not in groups:
            kind = "tasks"
        if kind:
            found.append(f"{node.lineno}: {ast.unparse(node)}; use {INSTEAD[kind]}")
    return found


def kind_of(full: str) -> str:
    """Return the kind of what is imported by its full name, empty where it is nobody's business."""
    module, _, rest = full.partition(".")
    if full in MAKES_THREADS:
        return "threads"
    if full in NOW:
        return "time"
    if full in DRAWS:
        return "random"
    if module == "asyncio" and rest in STARTS_TASKS:
        return "tasks"
    return module if module in MODULES and rest else ""


def task_groups(tree: ast.AST) -> Iterator[str]:
    """The names of groups that wait for their tasks."""
    for node in ast.walk(tree):
        for item in node.items if isinstance(node, ast.AsyncWith) else ():
            if isinstance(item.optional_vars, ast.Name) and ast.unparse(item.context_expr) == GROUP:
                yield item.optional_vars.id


def imported(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(name here, full name) of each import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.split(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (top, top)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def test_time_chance_threads_and_tasks_come_through_the_seams() -> None:
    found = {path.relative_to(REPOSITORY).as_posix(): breaches(path.read_text()) for path in COVERED}
    assert {path: uses for path, uses in found.items() if uses} == {}


@pytest.mark.parametrize("place", sorted(EXEMPT))
def test_what_is_exempt_is_there_and_needs_to_be(place: str) -> None:
    """An exemption that nothing needs any more would let the next breach in."""
    path = REPOSITORY / place
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    assert any(breaches(file.read_text()) for file in files), place


@pytest.mark.parametrize(
    ("source", "instead"),
    [
        ("import time\nnow = lambda: time.time()", "time"),
        ("import time\n\ndef f(clock=time.monotonic): ...", "time"),
        ("from time import monotonic\n\ndef f(): return monotonic()", "time"),
        ("import time as t\n\ndef f(): t.sleep(1)", "time"),
        ("from datetime import datetime\n\ndef f(): return datetime.now()", "time"),
        ("import datetime\n\ndef f(): return datetime.datetime.now()", "time"),
        ("import random\n\ndef f(): return random.choice('ab')", "random"),
        ("from random import shuffle\n\ndef f(): shuffle([1])", "random"),
        ("import os\n\ndef f(): return os.urandom(4)", "random"),
        ("import secrets\n\ndef f(): return secrets.token_hex(4)", "secrets"),
        ("import uuid\n\ndef f(): return uuid.uuid4()", "uuid"),
        ("import threading\n\ndef f(): threading.Thread(target=f).start()", "threads"),
        ("from threading import Thread, Event\n\ndef f(): Thread(target=f).start()", "threads"),
        ("from concurrent.futures import ThreadPoolExecutor\n\ndef f(): ThreadPoolExecutor(1)", "threads"),
        ("import asyncio\n\ndef f(): asyncio.create_task(g())", "tasks"),
        ("import asyncio\n\ndef f(): asyncio.ensure_future(g())", "tasks"),
        ("from asyncio import create_task\n\ndef f(): create_task(g())", "tasks"),
        ("import asyncio\n\ndef f(): asyncio.get_running_loop().create_task(g())", "tasks"),
        ("from shared.deadline import SYSTEM_CLOCK\n\ndef f(now=SYSTEM_CLOCK.monotonic_s): ...", "kept"),
        ("from shared.seams.chance import CHANCE\n\nbits = CHANCE.bits", "kept"),
        ("from shared.seams.buggify import BUGGIFY\n\ntakes = BUGGIFY.takes", "kept"),
    ],
)
def test_the_law_notices_what_passes_the_seams_by(source: str, instead: str) -> None:
    (found,) = breaches(source)
    assert found.endswith(INSTEAD[instead])


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio\n\nasync def f():\n async with asyncio.TaskGroup() as g:\n  g.create_task(h())",
        "import asyncio\n\nasync def f():\n async with asyncio.timeout(1):\n  await asyncio.to_thread(g)",
        "import threading\n\nlock = threading.Lock()",
        "from random import Random\n\ndef f(seed): return Random(seed)",
        "from datetime import datetime\n\ndef f(text): return datetime.fromisoformat(text)",
        "from shared.deadline import SYSTEM_CLOCK\n\ndef f(clock=SYSTEM_CLOCK): return clock.monotonic_s()",
        "from concurrent.futures import Future\n\ndef f(done: Future[int]): ...",
        "def f(job): return job.time.monotonic",
    ],
)
def test_the_law_leaves_the_rest_alone(source: str) -> None:
    assert breaches(source) == []
