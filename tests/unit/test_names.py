"""One meaning per name, and docstrings whose first line is understood alone."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

SHARED_CLASS_NAMES: dict[str, str] = {}
"""Class names that may be defined more than once, and why. Empty is how it should be."""

SHARED_FUNCTION_NAMES = {
    "main": "what a program does; one per module that is run",
    "body": "what `run_service` runs; one per service",
    "read": "a model family's way to read a config; one per family",
    "read_job": "a worker's way to check a route; prefill and decode have the same files",
    "job_output": "a worker's share of a step; prefill and decode have the same files",
}

FRAGMENT = re.compile(
    r"(After|Also|And|As|At|Before|Behind|Beside|Between|By|For|From|How|In|None|Nor|Not|Of|On|Only|Says|Since"
    r"|So|That|Those|To|Until|Up|What|Whatever|When|Where|Which|Who|Whoever|Whom|Whose|With|Without)\b"
)
"""First words of a relative clause or a remark: a sentence begins with its subject or with what is done."""


Modules = list[tuple[str, ast.Module]]


def modules(*tops: str) -> Modules:
    paths = [path for top in tops for path in sorted((REPOSITORY / top).rglob("*.py"))]
    return [(path.relative_to(REPOSITORY).as_posix(), ast.parse(path.read_text())) for path in paths]


@pytest.fixture(scope="module")
def ours() -> Modules:
    return modules("services", "shared")


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the node and all statements in it: expressions, which are most of a tree, define nothing."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
            yield from statements(child)


def docstrings(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the first line of each docstring, of constants and attributes too, with the name it describes."""
    for node in statements(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "name", "the module"), text.splitlines()[0]
            for defined, behind in pairwise(node.body):
                match defined, behind:
                    case ast.Assign() | ast.AnnAssign(), ast.Expr(ast.Constant(str() as text)):
                        yield ast.unparse(defined).partition("=")[0], text.splitlines()[0]


def classes(module: ast.Module) -> Iterator[str]:
    """Classes, also inner ones, and type aliases: names in capitals and small letters that are assigned."""
    for node in statements(module):
        if isinstance(node, ast.ClassDef):
            yield node.name
    for node in module.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        for target in targets:
            if isinstance(target, ast.Name) and target.id[0].isupper() and not target.id.isupper():
                yield target.id


def functions(module: ast.Module) -> Iterator[str]:
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node.name


def defined_twice(modules: Modules, names_of: Callable[[ast.Module], Iterator[str]]) -> dict[str, list[str]]:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for path, module in modules:
        for name in names_of(module):
            places[name].append(path)
    return {name: paths for name, paths in places.items() if len(paths) > 1}


def test_no_class_name_has_two_meanings(ours: Modules) -> None:
    twice = {name: paths for name, paths in defined_twice(ours, classes).items() if len(name) > 1}
    assert {name: paths for name, paths in twice.items() if name not in SHARED_CLASS_NAMES} == {}
    assert set(SHARED_CLASS_NAMES) <= set(twice), "an exception that is none any more"


def test_no_public_function_name_has_two_meanings(ours: Modules) -> None:
    twice = defined_twice(ours, functions)
    assert {name: paths for name, paths in twice.items() if name not in SHARED_FUNCTION_NAMES} == {}
    assert set(SHARED_FUNCTION_NAMES) <= set(twice), "an exception that is none any more"


def test_no_docstring_begins_with_a_fragment(ours: Modules) -> None:
    assert [
        f"{path}: {name}: {line}"
        for path, module in [*ours, *modules("protos")]
        for name, line in docstrings(module)
        if FRAGMENT.match(line)
    ] == []
