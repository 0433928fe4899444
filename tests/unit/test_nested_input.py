"""Readers of JSON or TOML that may be malformed know that too many brackets are an error of their own."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.support.data import REPOSITORY

READERS = {"json.loads", "json.load", "tomllib.loads", "tomllib.load"}
WIDE = {"RecursionError", "RuntimeError", "Exception", "BaseException", "MALFORMED"}
"""Names that catch it; MALFORMED has it among others."""
NOT_FROM_OUTSIDE = {
    "services/cli/bench/engine.py": "what a process of ours printed",
    "shared/bus/nats_server.py": "what the server itself wrote",
    "shared/engine/measuring/benchmark.py": "what its parent said",
    "shared/engine/native/packed_file.py": "what its checksum covers",
    "shared/retrieval/documents/front_matter.py": "one scalar between quotation marks",
}


def unaware(source: str) -> Iterator[int]:
    """Yield the lines of reads that are within a `try` none of whose handlers catches a RecursionError."""
    if not any(reader in source for reader in READERS):
        return
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Try) or not node.handlers:
            continue
        caught = {
            name.id
            for handler in node.handlers
            for name in ast.walk(handler.type or ast.Name("BaseException"))
            if isinstance(name, ast.Name)
        }
        reads = [
            call.lineno
            for statement in node.body
            for call in ast.walk(statement)
            if isinstance(call, ast.Call) and ast.unparse(call.func) in READERS
        ]
        if reads and not caught & WIDE:
            yield from reads


def test_nesting_is_caught_where_other_faults_of_a_text_are() -> None:
    found = [
        f"{path}:{line}"
        for top in ("services", "shared")
        for file in sorted((REPOSITORY / top).rglob("*.py"))
        for path in [file.relative_to(REPOSITORY).as_posix()]
        if path not in NOT_FROM_OUTSIDE
        for line in unaware(file.read_text("utf-8"))
    ]
    assert found == []


def test_the_check_sees_a_read_that_forgets_it() -> None:
    forgets = "try:\n    json.loads(text)\nexcept ValueError:\n    pass"
    assert list(unaware(forgets)) == [2]
    assert list(unaware(forgets.replace("ValueError", "(ValueError, RecursionError)"))) == []
