"""The code of another commit is as it was, with kernels of its own sources."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from services.cli.bench.stacks.commit_tree import CHANGED, KERNELS, checkout_commit, commit_tree
from shared.errors import InvalidRequest, Unavailable

SOURCE = KERNELS / "one.cpp"
BUILT = KERNELS / "_kernels.test.so"
SETUP = "setup.py"
BUILDS = "from pathlib import Path; Path('{built}').write_text('of ' + Path('{source}').read_text())"


def git(checkout: Path, *words: str) -> str:
    names = ("-c", "user.name=a", "-c", "user.email=a@b")
    return subprocess.run(
        ["git", "-C", str(checkout), *names, *words], check=True, capture_output=True, text=True
    ).stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Two commits, of which the second has other kernels; they are compiled for what is checked out."""
    (tmp_path / KERNELS).mkdir(parents=True)
    git(tmp_path, "init", "--quiet")
    (tmp_path / ".gitignore").write_text("*.so\n")
    for text in ("first", "second"):
        (tmp_path / SOURCE).write_text(text)
        git(tmp_path, "add", "--all")
        git(tmp_path, "commit", "--quiet", "--message", text)
    (tmp_path / BUILT).write_text("of second")
    return tmp_path


def laid(checkout: Path, name: str) -> dict[str, str]:
    """Return the files of a commit's kernels while it is laid out."""

    async def main() -> dict[str, str]:
        async with commit_tree(name, checkout) as (commit, tree):
            assert commit == git(checkout, "rev-parse", name).strip()
            found = {path.name: path.read_text() for path in (tree / KERNELS).iterdir()}
        assert not tree.exists()
        return found

    return asyncio.run(main())


def test_kernels_of_the_same_sources_are_taken_along(checkout: Path) -> None:
    assert laid(checkout, "HEAD") == {SOURCE.name: "second", BUILT.name: "of second"}


def test_kernels_of_other_sources_are_compiled(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = BUILDS.format(built=BUILT, source=SOURCE)
    monkeypatch.setattr("services.cli.bench.stacks.commit_tree.BUILD", build)
    assert laid(checkout, "HEAD~1") == {SOURCE.name: "first", BUILT.name: "of first"}
    assert (checkout / BUILT).read_text() == "of second"


def test_the_setup_of_a_commit_compiles_its_kernels(checkout: Path) -> None:
    (checkout / SETUP).write_text(BUILDS.format(built=BUILT, source=SOURCE))
    for text in ("third", "fourth"):
        (checkout / SOURCE).write_text(text)
        git(checkout, "add", "--all")
        git(checkout, "commit", "--quiet", "--message", text)
    assert laid(checkout, "HEAD~1") == {SOURCE.name: "third", BUILT.name: "of third"}


def test_without_compiled_kernels_nothing_is_compiled(checkout: Path) -> None:
    (checkout / BUILT).unlink()
    assert laid(checkout, "HEAD~1") == {SOURCE.name: "first"}


def test_a_compiler_that_fails_has_the_last_word(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.cli.bench.stacks.commit_tree.BUILD", "raise SystemExit('no such header')")
    with pytest.raises(Unavailable, match="no such header"):
        laid(checkout, "HEAD~1")


@pytest.mark.parametrize("name", ["HEAD~9", "--all", "nothing"])
def test_what_is_no_commit_is_refused_by_name(checkout: Path, name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"'{name}' is no commit of"):
        laid(checkout, name)


def test_code_that_is_no_checkout_has_no_commits(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="is no git checkout, so it has no commit 'HEAD'"):
        laid(tmp_path, "HEAD")


def test_a_checkout_tells_its_commit_and_whether_files_differ(
    checkout: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    head = git(checkout, "rev-parse", "HEAD").strip()
    assert asyncio.run(checkout_commit(checkout)) == head
    (checkout / SOURCE).write_text("third")
    assert asyncio.run(checkout_commit(checkout)) == head + CHANGED
    assert asyncio.run(checkout_commit(tmp_path_factory.mktemp("no-checkout"))) == ""
