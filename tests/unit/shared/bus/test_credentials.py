from __future__ import annotations

from pathlib import Path

import pytest

from shared.bus.credentials import Credentials, load_credentials
from shared.errors import InvalidRequest
from shared.files.atomic_write import write_secret


def test_what_is_written_is_read_and_nobody_else_can_read_it(tmp_path: Path) -> None:
    file = tmp_path / "decode-0.toml"
    credentials = Credentials.random("decode-0")
    credentials.write(file)
    assert load_credentials(str(file)) == credentials
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_file_that_others_could_read_is_replaced_by_one_that_they_cannot(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("old")
    file.chmod(0o644)
    write_secret(file, "new")
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("new", 0o600)


def test_passwords_differ_and_are_not_shown() -> None:
    first, second = Credentials.random("a"), Credentials.random("a")
    assert first.password != second.password
    assert first.password not in repr(first)


def test_a_certificate_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    (tmp_path / "f.toml").write_text(f'tls_ca = "{tmp_path / "ca.pem"}"')
    with pytest.raises(InvalidRequest, match=r"ca\.pem cannot be used"):
        load_credentials(str(tmp_path / "f.toml"))


def test_no_file_is_no_credentials() -> None:
    assert load_credentials("") is None


@pytest.mark.parametrize(
    "text",
    ["", "secret", 'user = "u"', 'user = "u"\npassword = ""', 'user = "u"\npassword = 1', "\xff",
     'user = "u"\npassword = "secret"\nhost = "h"', 'tls_cert = "c"\ntls_key = "k"',
     'tls_ca = "a"\ntls_cert = "c"'],
)  # fmt: skip
def test_a_file_that_is_none_is_named_and_not_quoted(tmp_path: Path, text: str) -> None:
    file = tmp_path / "f.toml"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(InvalidRequest, match=r"f\.toml") as caught:
        load_credentials(str(file))
    assert "secret" not in str(caught.value)


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(InvalidRequest, match="/nowhere cannot be read: No such file"):
        load_credentials("/nowhere")
