"""`penstock keys`: what it shows, what it files, and what it leaves alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from services.cli.__main__ import main
from services.cli.exit_codes import EXIT_FAILED
from services.cli.fleet import keys
from shared.cache_modes import CACHE_MODES
from shared.errors import InvalidRequest
from shared.files.api_key_file import MAX_WEIGHT, ApiKey, KeyLimits, hash_api_key, parse_api_keys
from tests.support.data import REPOSITORY


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PENSTOCK_GATEWAY_API_KEYS", raising=False)
    monkeypatch.delenv("PENSTOCK_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "keys.toml"


def filed(file: Path) -> tuple[ApiKey, ...]:
    return parse_api_keys(file.read_text(), file)


def test_the_key_is_shown_once_and_its_hash_is_filed_with_its_limits(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["keys", "new", "--tenant", "acme", "--name", "web", "--file", str(file)]
    limits = ["--requests-per-min", "60", "--concurrency", "4", "--tokens-per-min", "1000"]
    assert main([*argv, *limits]) == 0
    shown = capsys.readouterr()
    (secret,) = shown.out.splitlines()
    assert secret not in shown.err + file.read_text()
    assert filed(file) == (ApiKey("web", "acme", hash_api_key(secret), KeyLimits(60, 4, 1000)),)


@pytest.mark.parametrize("mode", CACHE_MODES)
def test_a_key_may_have_a_default_for_earlier_answers(file: Path, mode: str) -> None:
    assert main(["keys", "new", "--tenant", "acme", "--file", str(file), "--cache", mode]) == 0
    assert [key.cache for key in filed(file)] == [mode]


@pytest.mark.parametrize(("options", "operator"), [((), False), (("--operator",), True)])
def test_a_key_is_an_operator_s_where_that_is_said(
    file: Path, options: tuple[str, ...], operator: bool
) -> None:
    assert main(["keys", "new", "--tenant", "acme", "--file", str(file), *options]) == 0
    assert [key.operator for key in filed(file)] == [operator]


def test_nobody_else_may_read_the_file_also_when_they_could_before(file: Path) -> None:
    for _ in range(2):
        assert main(["keys", "new", "--tenant", "acme", "--file", str(file)]) == 0
        assert file.stat().st_mode & 0o777 == 0o600
        file.chmod(0o644)


def test_what_stands_in_the_file_stays_as_it_is(file: Path) -> None:
    file.write_text("# ours\n")
    assert main(["keys", "new", "--tenant", "acme", "--file", str(file)]) == 0
    first = file.read_text()
    assert main(["keys", "new", "--tenant", "rival", "--file", str(file)]) == 0
    assert first.startswith("# ours\n")
    assert file.read_text().startswith(first)
    assert [key.tenant for key in filed(file)] == ["acme", "rival"]
    assert [path.name for path in file.parent.iterdir()] == ["keys.toml"]


def test_a_tenant_of_any_allowed_length_gets_a_name_for_its_key(file: Path) -> None:
    assert main(["keys", "new", "--tenant", "t" * 63, "--file", str(file)]) == 0


def test_the_file_is_the_gateways_unless_another_is_named(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_GATEWAY_API_KEYS", str(file))
    assert main(["keys", "new", "--tenant", "acme"]) == 0
    assert len(filed(file)) == 1


def test_a_link_leads_to_the_file_that_is_changed(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to(file)
    assert main(["keys", "new", "--tenant", "acme", "--file", str(link)]) == 0
    assert link.is_symlink()
    assert len(filed(file)) == 1


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--tenant", "Acme"], "has a wrong tenant"),
        (["--tenant", "acme", "--name", "a b"], "has a wrong name"),
        (["--tenant", "acme", "--concurrency", "0"], "has a wrong concurrency"),
        (["--tenant", "acme", "--name", "taken"], "has the name of key 1"),
    ],
)
def test_what_no_gateway_would_take_is_not_filed(
    file: Path, argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    keys.add_api_key(file, ApiKey("taken", "acme", hash_api_key("x")))
    before = file.read_text()
    assert main(["keys", "new", "--file", str(file), *argv]) == 1
    shown = capsys.readouterr()
    assert words in shown.err
    assert shown.out == ""
    assert file.read_text() == before


@pytest.mark.parametrize("content", ["[[key]\n", "key = [{name = 'a'}]\n", "[other]\n"])
def test_a_file_that_is_none_of_keys_is_left_as_it_is(
    file: Path, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(content)
    assert main(["keys", "new", "--tenant", "acme", "--file", str(file)]) == 1
    assert str(file) in capsys.readouterr().err
    assert file.read_text() == content


def test_a_folder_that_is_not_there_is_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", "new", "--tenant", "acme", "--file", str(tmp_path / "no" / "keys.toml")]) == 1
    assert "cannot be written (No such file or directory)" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["new"], ["new", "--tenant", "acme"], ["old"]])
@pytest.mark.usefixtures("file")
def test_wrong_usage_exits_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["keys", *argv])
    assert caught.value.code == 2


def test_keys_that_are_made_at_the_same_time_are_all_filed(file: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from services.cli.fleet.keys import add_api_key\n"
        "from shared.files.api_key_file import ApiKey, hash_api_key\n"
        "for i in range(20):\n"
        "    name = f'{sys.argv[2]}-{i}'\n"
        "    add_api_key(Path(sys.argv[1]), ApiKey(name, 't', hash_api_key(name)))\n"
    )
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    writers = [
        subprocess.Popen([sys.executable, "-c", code, str(file), f"writer{n}"], env=environ) for n in range(3)
    ]
    assert [writer.wait(100) for writer in writers] == [0, 0, 0]
    assert len(filed(file)) == 60


def test_a_writer_that_fails_leaves_nothing_behind(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        keys.add_api_key(file, ApiKey("a", "t", hash_api_key("x")))
    assert list(file.parent.iterdir()) == []


def test_a_key_whose_hash_is_filed_twice_is_refused(file: Path) -> None:
    keys.add_api_key(file, ApiKey("a", "t", hash_api_key("x")))
    with pytest.raises(InvalidRequest, match="has the hash of key 1"):
        keys.add_api_key(file, ApiKey("b", "t", hash_api_key("x")))


def configured(folder: Path, api_keys: str) -> None:
    (folder / "penstock.toml").write_text(f"[gateway]\napi_keys = {api_keys}\n")


def test_the_file_is_the_configured_one_where_nothing_else_is_said(file: Path) -> None:
    configured(file.parent, '"keys.toml"')
    assert main(["keys", "new", "--tenant", "acme"]) == 0
    assert [key.tenant for key in filed(file)] == ["acme"]


def test_the_configured_file_is_found_from_anywhere(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    configured(file.parent, '"keys.toml"')
    monkeypatch.setenv("PENSTOCK_CONFIG", str(file.parent / "penstock.toml"))
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    assert main(["keys", "new", "--tenant", "acme"]) == 0
    assert file.exists()


def test_the_environment_goes_before_the_configuration_and_an_option_before_both(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    configured(file.parent, '"configured.toml"')
    monkeypatch.setenv("PENSTOCK_GATEWAY_API_KEYS", str(file))
    assert main(["keys", "new", "--tenant", "acme"]) == 0
    assert main(["keys", "new", "--tenant", "acme", "--file", "said.toml"]) == 0
    assert {path.name for path in file.parent.iterdir()} == {"penstock.toml", "keys.toml", "said.toml"}


@pytest.mark.parametrize(("api_keys", "told"), [("5", "penstock.toml:2"), ("", "is not TOML")])
def test_a_configuration_that_is_wrong_is_a_sentence(
    file: Path, api_keys: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configured(file.parent, api_keys)
    with pytest.raises(SystemExit) as end:
        main(["keys", "new", "--tenant", "acme"])
    assert end.value.code == 2
    assert told in capsys.readouterr().err


def test_a_key_may_have_a_weight_and_an_impossible_one_files_nothing(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = ["keys", "new", "--tenant", "acme", "--file", str(file), "--weight"]
    assert main([*new, str(MAX_WEIGHT)]) == 0
    assert main([*new, str(MAX_WEIGHT + 1)]) == EXIT_FAILED
    assert "has a wrong weight" in capsys.readouterr().err
    assert [key.weight for key in filed(file)] == [MAX_WEIGHT]


def test_a_key_goes_into_a_file_that_is_its_owner_s_alone(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "acme.key"
    argv = ["keys", "new", "--tenant", "acme", "--file", str(file), "--out", str(out)]
    assert main(argv) == 0
    assert out.stat().st_mode & 0o777 == 0o600
    secret = out.read_text().strip()
    assert filed(file)[0].hash == hash_api_key(secret)
    assert capsys.readouterr().out == ""
    assert main(argv) == EXIT_FAILED  # the key that is there would be lost
    assert out.read_text().strip() == secret
    assert len(filed(file)) == 1


def test_a_key_that_cannot_be_filed_is_in_no_file(file: Path, tmp_path: Path) -> None:
    file.write_text("no TOML")
    out = tmp_path / "acme.key"
    assert main(["keys", "new", "--tenant", "acme", "--file", str(file), "--out", str(out)]) == EXIT_FAILED
    assert not out.exists()


def test_keys_are_listed_with_what_they_may_do(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--name", "web", "--requests-per-min", "60", "--operator", "--weight", "4", "--cache", "off"]
    main(["keys", "new", "--tenant", "acme", "--file", str(file), *options])
    main(["keys", "new", "--tenant", "acme", "--file", str(file), "--name", "app"])
    capsys.readouterr()
    assert main(["keys", "list", "--file", str(file)]) == 0
    head, web, app = capsys.readouterr().out.splitlines()
    assert head.split() == ["key", "tenant", "requests/min", "at", "once", "tokens/min"]
    assert web.split() == ["web", "acme", "60", "any", "any", "operator,", "weight", "4,", "cache", "off"]
    assert app.split() == ["app", "acme", "any", "any", "any"]


WRITTEN = """# keys of acme
[[key]]
name = "web"  # the site
tenant = "acme"
hash = "{web}"

# the phones
[[key]]
name = "app"
tenant = "acme"
hash = "{app}"
# the end
"""


@pytest.mark.parametrize(
    ("name", "left"),
    [
        ("web", ["# keys of acme", "# the phones", "[[key]]", 'name = "app"']),
        ("app", ["# keys of acme", "[[key]]", 'name = "web"  # the site']),
    ],
)
def test_a_key_is_taken_out_and_all_else_stays_as_it_is(file: Path, name: str, left: list[str]) -> None:
    file.write_text(WRITTEN.format(web=hash_api_key("1"), app=hash_api_key("2")))
    assert main(["keys", "revoke", name, "--file", str(file)]) == 0
    assert [key.name for key in filed(file)] == [{"web": "app", "app": "web"}[name]]
    lines = file.read_text().splitlines()
    assert [line for line in lines if line in left] == left
    assert lines[-1] == "# the end"


def test_a_key_that_is_not_there_is_a_sentence(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["keys", "new", "--tenant", "acme", "--file", str(file)])
    assert main(["keys", "revoke", "web", "--file", str(file)]) == EXIT_FAILED
    assert "has no key web: `penstock keys list` shows" in capsys.readouterr().err


def test_the_last_key_can_be_taken_out(file: Path) -> None:
    main(["keys", "new", "--tenant", "acme", "--name", "web", "--file", str(file)])
    assert main(["keys", "revoke", "web", "--file", str(file)]) == 0
    assert filed(file) == ()


def test_a_key_in_a_form_of_its_own_is_left_to_be_removed_by_hand(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = ", ".join(
        f'{{name = "{name}", tenant = "acme", hash = "{hash_api_key(name)}"}}' for name in ("web", "app")
    )
    file.write_text(f"key = [{entries}]\n")
    assert main(["keys", "revoke", "web", "--file", str(file)]) == EXIT_FAILED
    assert "remove the key web by hand" in capsys.readouterr().err
    assert len(filed(file)) == 2
