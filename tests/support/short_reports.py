"""Workers of `pytest -n` tell of a test that passes once, not of its set-up and its end as well.

xdist packs, sends and unpacks three reports of each test, and two of them say that nothing was wrong.
"""

from __future__ import annotations

from typing import Any

import pytest

UNSAID = {"unsaid": True}
"""The stand-in for a report that nobody is told of."""


class ShortReports:
    """The plugin of a worker that leaves such reports unsaid."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_to_serializable(self, report: object) -> dict[str, bool] | None:
        return UNSAID.copy() if is_unsaid(report) else None


def shorten_reports(config: pytest.Config) -> None:
    """Shorten what this process tells, if it is a worker and nobody has asked for more."""
    if not hasattr(config, "workerinput") or wants_all(config):
        return
    told_by = [each for each in config.pluginmanager.get_plugins() if hasattr(each, "run_one_test")]
    for interactor in told_by:
        interactor.sendevent = without_unsaid(interactor.sendevent)
    if told_by:
        config.pluginmanager.register(ShortReports())


def is_unsaid(report: object) -> bool:
    """Return whether this is of a set-up or an end that passed, without a word."""
    return (
        type(report) is pytest.TestReport
        and report.when != "call"
        and report.passed
        and not report.sections
        and not report.user_properties
    )


def wants_all(config: pytest.Config) -> bool:
    """Return whether set-ups and ends are listed, too: by how long they took, or in a file."""
    return config.getoption("durations", None) is not None or bool(config.getoption("xmlpath", None))


def without_unsaid(send: Any) -> Any:
    """Return `send` for events, those left out whose data says that they are unsaid."""

    def send_others(name: str, **told: Any) -> None:
        if not UNSAID.keys() <= told.get("data", {}).keys():
            send(name, **told)

    return send_others
