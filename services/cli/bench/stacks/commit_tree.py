"""The code of another commit, laid out in a folder of its own, with the kernels that it is installed with."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

from services.cli.launcher_process import ROOT
from shared.errors import InvalidRequest, Unavailable

BUILD_DEADLINE_S = 900.0
"""The longest that kernels may take to be compiled, and any of git's commands."""
KERNELS = Path("shared/engine/native")
BUILT = "_kernels*.so"
BUILD = """
import pathlib, runpy, setuptools
runpy.run_path("setup.py") if pathlib.Path("setup.py").exists() else setuptools.setup()
"""
"""A program that compiles the kernels of the code in the current folder."""
CHANGED = ", with changes"
"""The words behind a commit whose files were changed."""
TAIL_CHARS = 2000
"""The last words of a command that failed, which are said."""


@contextlib.asynccontextmanager
async def commit_tree(name: str, checkout: Path = ROOT) -> AsyncIterator[tuple[str, Path]]:
    """Lay out a commit of `checkout`, and remove it at the end; yields its full name and the folder.

    Its kernels are compiled where their sources differ from ours, if ours are compiled.
    Raises InvalidRequest where it is no commit, Unavailable where git or the compiler fails.
    """
    commit = await _commit(name, checkout)
    with tempfile.TemporaryDirectory(prefix="penstock-commit-", ignore_cleanup_errors=True) as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        archive = Path(folder) / "tree.tar"
        await _run("git", "-C", str(checkout), "archive", "--output", str(archive), commit)
        await _run("tar", "-x", "-f", str(archive), "-C", str(tree))
        archive.unlink()
        await _lay_kernels(tree, commit, checkout)
        yield commit, tree


async def checkout_commit(checkout: Path = ROOT) -> str:
    """Return the commit of a checkout, and whether files differ from it; "" where it is no checkout of git.

    Raises Unavailable where git fails.
    """
    if not (checkout / ".git").exists():
        return ""
    git = ("git", "--no-optional-locks", "-C", str(checkout))
    commit = (await _run(*git, "rev-parse", "HEAD")).strip()
    changed = await _run(*git, "status", "--porcelain", "--untracked-files=no")
    return f"{commit}{CHANGED if changed.strip() else ''}"


async def _commit(name: str, checkout: Path) -> str:
    if not (checkout / ".git").exists():
        raise InvalidRequest(f"{checkout} is no git checkout, so it has no commit {name!r}: clone Penstock")
    try:
        found = await _run(
            "git", "-C", str(checkout), "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}"
        )
    except Unavailable as error:
        raise InvalidRequest(f"{name!r} is no commit of {checkout}: see `git log`") from error
    return found.strip()


async def _lay_kernels(tree: Path, commit: str, checkout: Path) -> None:
    built = list((checkout / KERNELS).glob(BUILT))
    if not built:
        return
    differing = await _run("git", "-C", str(checkout), "diff", "--name-only", commit, "--", str(KERNELS))
    if differing.strip():
        await _run(sys.executable, "-c", BUILD, "build_ext", "--inplace", cwd=tree)
    else:
        for each in built:
            shutil.copy2(each, tree / KERNELS)


async def _run(*command: str, cwd: Path | None = None) -> str:
    """Return what a command prints. Raises Unavailable with its last words, or where it takes too long."""
    process = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(BUILD_DEADLINE_S):
            said = (await process.communicate())[0].decode(errors="replace")
    except TimeoutError as error:
        raise Unavailable(
            f"{command[0]} took more than {BUILD_DEADLINE_S:g} s: {' '.join(command)}"
        ) from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        raise Unavailable(f"{' '.join(command)} failed:\n{said[-TAIL_CHARS:].strip()}")
    return said
