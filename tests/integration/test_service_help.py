"""`python -m services.<role>` has one option, --help, and starts nothing where it is told anything else."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shared.roles import ROLES
from tests.support.data import REPOSITORY

TIMEOUT_S = 100


def service(role: str, *argv: str, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *python, "-m", f"services.{role}", *argv],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.mark.parametrize("role", ROLES)
def test_help_lists_the_settings_and_starts_nothing(role: str) -> None:
    done = service(role, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: python -m services.{role}" in done.stdout
    assert "PENSTOCK_NATS_URL" in done.stdout
    assert "PENSTOCK_LOG_FORMAT" in done.stdout


def test_help_tells_default_meaning_and_choices() -> None:
    words = " ".join(service("decode", "--help").stdout.split())
    meaning = "most draft tokens per sequence and step; 0 = no drafts (default: 4)"
    assert f"PENSTOCK_DECODE_DRAFT_TOKENS {meaning}" in words
    assert "one of auto, nats, shm (default: auto)" in words


@pytest.mark.thorough(but="decode | gateway")
@pytest.mark.parametrize("role", ["prefill", "decode", "speculator", "retriever", "gateway"])
def test_help_loads_nothing_of_what_the_service_does(role: str) -> None:
    done = service(role, "--help", python=("-X", "importtime"))
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert f"services.{role}.config" in loaded
    assert not loaded & {"torch", "numpy", "grpc", "nats", "uvloop"}


def test_an_argument_that_is_none_is_a_usage_error() -> None:
    done = service("tokenizer", "--workers", "4")
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is no argument '--workers'" in done.stderr
    assert "Traceback" not in done.stderr
