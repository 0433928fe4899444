"""Against the kernel of this machine, which may have one node alone: a list may name it twice."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from shared.engine.numa import DEFAULT_POLICY, INTERLEAVE_POLICY, interleaved, memory_nodes, memory_policy

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64" or memory_policy() is None,
    reason="needs a kernel that tells memory policies",
)


def test_pages_touched_within_the_block_are_spread_and_those_after_it_are_not() -> None:
    with interleaved((0, 0)):
        assert memory_policy() == INTERLEAVE_POLICY
    assert memory_policy() == DEFAULT_POLICY


def test_an_error_within_the_block_ends_the_policy_too() -> None:
    with pytest.raises(OSError, match="lost"), interleaved((0, 0)):
        raise OSError("lost")
    assert memory_policy() == DEFAULT_POLICY


def test_one_node_changes_nothing() -> None:
    with interleaved((0,)):
        assert memory_policy() == DEFAULT_POLICY


def test_a_policy_that_was_chosen_for_the_process_stays() -> None:
    with interleaved((0, 0)):
        with interleaved((0, 0)):
            assert memory_policy() == INTERLEAVE_POLICY
        assert memory_policy() == INTERLEAVE_POLICY


def test_nodes_that_the_kernel_refuses_are_told_and_change_nothing() -> None:
    with capture_logs() as logs, interleaved((4000, 4001)):
        assert memory_policy() == DEFAULT_POLICY
    assert [line["event"] for line in logs] == ["memory_not_interleaved"]


def test_the_nodes_of_a_machine_are_read_from_its_kernel(tmp_path: Path) -> None:
    listed = tmp_path / "has_memory"
    listed.write_text("0-1,4\n")
    assert memory_nodes(listed) == (0, 1, 4)
    assert memory_nodes()


def test_a_kernel_without_the_list_has_no_nodes(tmp_path: Path) -> None:
    assert memory_nodes(tmp_path / "none") == ()
    (tmp_path / "empty").write_text("\n")
    assert memory_nodes(tmp_path / "empty") == ()
