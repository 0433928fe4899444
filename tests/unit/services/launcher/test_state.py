from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

import pytest

from services.launcher.state import RunningInstance, StackRunning, StackState, StateDir, credentials_file
from shared.errors import InvalidRequest
from shared.files.stack_register import LOCK_NAME, launcher_of

STATE = StackState(
    "127.0.0.1:1",
    "127.0.0.1:5",
    "nats://127.0.0.1:2",
    "/state/operator.toml",
    (RunningInstance("gateway", "gateway-0", 3, "h:4", "h:5", "h:6"),),
    "/state/adapters.toml",
)


def test_stack_json_has_exactly_the_documented_shape(tmp_path: Path) -> None:
    state_dir = StateDir(tmp_path)
    state_dir.acquire()
    state_dir.write(STATE)
    assert json.loads((tmp_path / "stack.json").read_text()) == {
        "grpc": "127.0.0.1:1",
        "http": "127.0.0.1:5",
        "nats": "nats://127.0.0.1:2",
        "nats_credentials": "/state/operator.toml",
        "instances": [
            {
                "role": "gateway",
                "id": "gateway-0",
                "pid": 3,
                "metrics": "h:4",
                "grpc": "h:5",
                "http": "h:6",
                "inner": "",
            }
        ],
        "adapter_file": "/state/adapters.toml",
        "models": [],
        "share_ports": False,
        "roll": 0,
        "stand_in": "",
        "roll_trouble": "",
        "scale": 0,
        "scale_trouble": "",
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stack.json", "stack.lock"]
    state_dir.release()


def test_a_state_directory_that_is_made_is_its_owner_s_alone(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir(mode=0o755)
    state = StateDir(there / "new" / "state")
    state.acquire()
    state.release()
    modes = [path.stat().st_mode & 0o777 for path in (there, there / "new", there / "new" / "state")]
    assert modes == [0o755, 0o700, 0o700]


def test_a_clean_end_removes_stack_json_and_frees_the_directory(tmp_path: Path) -> None:
    first = StateDir(tmp_path)
    first.acquire()
    first.write(STATE)
    first.release()
    assert not (tmp_path / "stack.json").exists()
    second = StateDir(tmp_path)
    second.acquire()
    second.release()


def test_a_second_stack_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    first = StateDir(tmp_path / "new" / "folder")
    first.acquire()
    first.write(STATE)
    with pytest.raises(StackRunning, match=r"process \d+.*--state-dir"):
        StateDir(tmp_path / "new" / "folder").acquire()
    assert (tmp_path / "new" / "folder" / "stack.json").exists()
    first.release()


def test_who_only_looks_whether_a_stack_runs_keeps_none_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look holds the lock too, shared with others that look."""
    with (tmp_path / LOCK_NAME).open("w") as look:
        fcntl.flock(look, fcntl.LOCK_SH)
        pauses: list[float] = []

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            fcntl.flock(look, fcntl.LOCK_UN)

        monkeypatch.setattr(time, "sleep", pause)
        state_dir = StateDir(tmp_path)
        state_dir.acquire()
        assert launcher_of(tmp_path) == os.getpid()
        state_dir.release()
    assert len(pauses) == 1


def test_what_a_killed_stack_left_behind_is_cleared(tmp_path: Path) -> None:
    (tmp_path / "stack.json").write_text("stale")
    state_dir = StateDir(tmp_path)
    state_dir.acquire()
    assert not (tmp_path / "stack.json").exists()
    state_dir.release()


def test_the_credentials_of_a_killed_stack_are_cleared_and_those_of_a_stack_end_with_it(
    tmp_path: Path,
) -> None:
    credentials_file(tmp_path, "decode-0").parent.mkdir()
    credentials_file(tmp_path, "decode-0").write_text("stale")
    state_dir = StateDir(tmp_path)
    state_dir.acquire()
    folder = state_dir.make_bus_folder()
    assert list(folder.iterdir()) == []
    assert folder.stat().st_mode & 0o077 == 0
    state_dir.release()
    assert not folder.exists()


def test_a_state_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidRequest, match="--state-dir"):
        StateDir(tmp_path / "file" / "inside").acquire()
