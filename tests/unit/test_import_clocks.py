"""No module reads a clock when it is imported: what it holds would be as old as the process."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.dotted_name import dotted_name

REPOSITORY = Path(__file__).resolve().parents[2]
MODULES = sorted(
    path
    for top in ("services", "shared", "tests")
    for path in (REPOSITORY / top).rglob("*.py")
    if "__pycache__" not in path.parts
)

CLOCKS = {
    *("monotonic", "monotonic_ns", "monotonic_s", "perf_counter", "perf_counter_ns"),
    *(
        "process_time",
        "process_time_ns",
        "thread_time",
        "thread_cpu_ns",
        "time_ns",
        "unix_us",
        "now",
        "utcnow",
        "today",
    ),
}
"""Names whose call reads a clock, whatever they are called on."""

QUALIFIED_CLOCKS = {"time.time", "Deadline.after", "Deadline.from_unix_us", "asyncio.timeout"}
"""Calls that read one, of names too common to stand alone."""

MAY_READ = re.compile(rf"\b({'|'.join(sorted(CLOCKS | QUALIFIED_CLOCKS))})\(")
"""Sources without any of the names need not be parsed."""

FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def clock_reads(source: str) -> list[str]:
    """`line: call` of each call that reads a clock while the module is imported, itself or through a function
    of the same module."""
    if not MAY_READ.search(source):
        return []
    tree = ast.parse(source)
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, FUNCTION)}
    readers: set[str] = set()

    def reads(call: ast.Call) -> bool:
        called = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        name = dotted_name(call.func)
        return bool({called, name} & CLOCKS) or name in QUALIFIED_CLOCKS or name in readers

    while found := {
        name
        for name, function in functions.items()
        if name not in readers and any(reads(call) for line in function.body for call in calls_when_run(line))
    }:
        readers |= found
    return [f"{call.lineno}: {ast.unparse(call)}" for call in calls_when_run(tree) if reads(call)]


def calls_when_run(node: ast.AST) -> Iterator[ast.Call]:
    """The calls that happen when `node` is executed: those within functions that it only defines do not."""
    if isinstance(node, ast.Call):
        yield node
    if isinstance(node, FUNCTION):
        run_now: list[ast.AST] = [*node.decorator_list, *defaults(node.args)]
    elif isinstance(node, ast.Lambda):
        run_now = defaults(node.args)
    elif isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
        run_now = [*node.orelse]
    else:
        run_now = list(ast.iter_child_nodes(node))
    for child in run_now:
        yield from calls_when_run(child)


def defaults(arguments: ast.arguments) -> list[ast.AST]:
    return [*arguments.defaults, *(default for default in arguments.kw_defaults if default is not None)]


def test_no_module_reads_a_clock_when_it_is_imported() -> None:
    found = {path.relative_to(REPOSITORY).as_posix(): clock_reads(path.read_text()) for path in MODULES}
    assert {path: reads for path, reads in found.items() if reads} == {}


@pytest.mark.parametrize(
    "source",
    [
        "SOON = Deadline.after(60.0)",
        "class Case:\n    started: float = time.monotonic()",
        "def wait(until=time.time() + 5): ...",
        "def wait(*, until=time.time() + 5): ...",
        "check = lambda until=time.perf_counter(): until",
        "@pytest.mark.parametrize('deadline', [Deadline.after(1)])\ndef test_it(deadline): ...",
        "@dataclass\nclass Case:\n    at: datetime = field(default=datetime.now(UTC))",
        "def soon():\n    return Deadline.after(60.0)\n\ndef case():\n    return [soon()]\n\nCASE = case()",
        "TIMES = [SYSTEM_CLOCK.unix_us() for _ in range(3)]",
    ],
)
def test_the_check_notices_a_clock_that_is_read_at_import(source: str) -> None:
    assert len(clock_reads(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "def soon():\n    return Deadline.after(60.0)",
        "class Case:\n    def __init__(self):\n        self.at = time.monotonic()",
        "later = lambda: time.time()",
        "@dataclass\nclass Case:\n    at: float = field(default_factory=time.monotonic)",
        "def main():\n    print(time.time())\n\nif __name__ == '__main__':\n    main()",
        "def test_it(clock=FakeClock()):\n    clock.advance(1)",
    ],
)
def test_the_check_lets_a_clock_be_read_later(source: str) -> None:
    assert clock_reads(source) == []
