"""A file on a disk of this machine is looked at where it is asked for, one of a server in a thread."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from shared.files import followed_file
from shared.files.file_signature import file_signature
from shared.files.followed_file import FollowedFile, is_local

MOUNTS = r"""22 1 8:1 / / rw,relatime - ext4 /dev/root rw
30 22 0:25 / {disk} rw shared:1 - nfs4 server:/disk rw
31 30 0:26 / {disk}/near rw - tmpfs tmpfs rw
32 22 0:27 / {disk}/a\040b rw - tmpfs tmpfs rw
33 31 0:28 / {disk}/near/over rw - tmpfs tmpfs rw
34 33 0:29 / {disk}/near/over rw - fuse.sshfs far rw
"""


@pytest.fixture
def mounts(tmp_path: Path) -> Path:
    file = tmp_path / "mountinfo"
    file.write_text(MOUNTS.format(disk=tmp_path / "disk"))
    return file


@pytest.mark.parametrize(
    ("place", "local"),
    [
        ("../x", True),
        ("f", False),
        ("near/f", True),
        ("a b/f", True),
        ("near/over/f", False),
        ("nearby", False),
    ],
)
def test_the_nearest_mount_counts_and_of_several_there_the_last(
    tmp_path: Path, mounts: Path, place: str, local: bool
) -> None:
    assert is_local(tmp_path / "disk" / place, mounts) is local


def test_a_link_is_followed(tmp_path: Path, mounts: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "f")
    assert not is_local(tmp_path / "link", mounts)


def test_where_the_system_does_not_tell_nothing_is_local(tmp_path: Path) -> None:
    assert not is_local(tmp_path, tmp_path / "none")


@pytest.mark.parametrize("local", [True, False])
async def test_a_change_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: bool) -> None:
    monkeypatch.setattr(followed_file, "is_local", lambda _file: local)
    file = tmp_path / "file"
    followed = FollowedFile(file)
    assert await followed.signature() is None
    file.write_text("a")
    assert await followed.signature() == file_signature(file)


async def test_a_file_of_a_server_is_never_looked_at_in_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def noted(_file: Path) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asked.append(False)
        else:
            asked.append(True)

    monkeypatch.setattr(followed_file, "file_signature", noted)
    for local in (False, True):
        monkeypatch.setattr(followed_file, "is_local", lambda _file, local=local: local)
        await FollowedFile(tmp_path).signature()
    assert asked == [False, True]
