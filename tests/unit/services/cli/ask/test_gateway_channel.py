"""What `penstock ask` shows a gateway that is not open to all."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.cli.ask import gateway_channel
from services.cli.ask.ask_request import parse_request
from shared.errors import InvalidRequest


def metadata(*argv: str) -> tuple[tuple[str, str], ...]:
    return gateway_channel.call_metadata(parse_request(["hi", *argv])[0])


def refused(*argv: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        gateway_channel.open_channel("127.0.0.1:1", parse_request(["hi", *argv])[0])
    return str(caught.value)


def test_the_key_comes_from_the_environment_or_from_a_file_which_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "key"
    file.write_text("psk_file\n")
    monkeypatch.delenv("PENSTOCK_API_KEY", raising=False)
    assert metadata() == ()
    monkeypatch.setenv("PENSTOCK_API_KEY", "psk_env")
    assert metadata() == (("authorization", "Bearer psk_env"),)
    assert metadata("--api-key-file", str(file)) == (("authorization", "Bearer psk_file"),)


@pytest.mark.parametrize("content", [b"", b"\n", b"two words", b"two\nlines", b"\xc3\xa9", b"nul\x00"])
def test_a_file_that_holds_no_key_is_refused_without_showing_what_it_holds(
    content: bytes, tmp_path: Path
) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    with pytest.raises(InvalidRequest) as caught:
        metadata("--api-key-file", str(file))
    assert str(caught.value) == f"{file} holds no API key: it must hold one and nothing else"


def test_there_is_no_option_for_the_key_itself() -> None:
    with pytest.raises(SystemExit):
        parse_request(["hi", "--api-key", "psk_x"])


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert f"{missing} cannot be read" in refused("--tls-ca", missing)
    assert "go together" in refused("--tls-ca", missing, "--tls-cert", missing)
    assert "go together" in refused("--tls-key", missing)
    assert "needs --tls-ca" in refused("--tls-cert", missing, "--tls-key", missing)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        metadata("--api-key-file", missing)
