"""How the stack's own nats-server is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.launcher.network.nats import FEW_CORES, nats_spec


@pytest.mark.parametrize(
    ("cores", "environ", "threads"),
    [
        (FEW_CORES, {}, "1"),
        (FEW_CORES + 1, {}, None),
        (FEW_CORES, {"GOMAXPROCS": "2"}, "2"),
    ],
)
def test_the_server_has_one_thread_of_go_on_few_cores_unless_told_otherwise(
    tmp_path: Path, cores: int, environ: dict[str, str], threads: str | None
) -> None:
    spec, _ = nats_spec(tmp_path / "nats.conf", environ, cores)

    assert spec.environ.get("GOMAXPROCS") == threads
