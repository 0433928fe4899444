"""Every process says what it is made of."""

from __future__ import annotations

import platform
from importlib import metadata

from shared.telemetry.build import PYTHON_VERSION, VERSION
from shared.telemetry.http import TelemetryServer
from tests.support.metric import value


def test_a_process_that_shows_metrics_shows_its_build() -> None:
    TelemetryServer("tokenizer", lambda: True)
    assert metadata.version("penstock") == VERSION
    assert platform.python_version() == PYTHON_VERSION
    assert value("penstock_build_info", version=VERSION, python=PYTHON_VERSION) == 1
