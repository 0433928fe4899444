"""Folders that nobody but their owner looks into."""

from __future__ import annotations

from pathlib import Path

from shared.files.private_folder import keep_private, make_private_folder


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_what_is_missing_is_made_for_its_owner_and_what_is_there_stays(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    there.chmod(0o755)
    make_private_folder(there / "a" / "b")
    make_private_folder(there / "a" / "b")
    assert [mode(each) for each in (there, there / "a", there / "a" / "b")] == [0o755, 0o700, 0o700]


def test_what_others_could_read_they_can_read_no_more_and_links_lead_where_they_did(tmp_path: Path) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    (folder / "inner").mkdir(parents=True)
    for file in (outside, folder / "one", folder / "inner" / "two"):
        file.write_text("text")
        file.chmod(0o664)
    (folder / "link").symlink_to(outside)
    folder.chmod(0o755)
    keep_private(folder)
    assert [mode(each) for each in (folder, folder / "inner")] == [0o700, 0o700]
    assert [mode(each) for each in (folder / "one", folder / "inner" / "two")] == [0o600, 0o600]
    assert mode(outside) == 0o664
