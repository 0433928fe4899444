"""`penstock pull`, `list`, `show` and `rm`, with a hub on this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shared.files.model_store import store_folder
from shared.text.model_source import DEMO_MODEL
from tests.support.data import REPOSITORY
from tests.support.hub import COMMIT, Hub, running_hub
from tests.support.terminal import Terminal

TIMEOUT_S = 100
NAME = "org/tiny"
CARD = "---\nlicense: apache-2.0\ntags: [small]\n---\n# A model\n"


@dataclass(frozen=True, slots=True)
class Ended:
    code: int
    out: str
    err: str


@dataclass(frozen=True, slots=True)
class Shell:
    """Commands of a user whose caches and stacks are in a folder of its own."""

    environ: dict[str, str]

    def command(self, *argv: str) -> list[str]:
        return [sys.executable, "-m", "services.cli", *argv]

    def run(self, *argv: str) -> Ended:
        done = subprocess.run(
            self.command(*argv),
            cwd=REPOSITORY,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert "Traceback" not in done.stderr
        return Ended(done.returncode, done.stdout, done.stderr)

    def names(self) -> list[str]:
        listed = json.loads(self.run("list", "--json").out)
        return [each["name"] for each in listed["models"]]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    for file in DEMO_MODEL.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "README.md").write_text(CARD)
    (folder / "pytorch_model.bin").write_bytes(b"a pickle")
    return folder


@pytest.fixture
def hub(repository: Path) -> Iterator[Hub]:
    with running_hub(NAME, repository) as running:
        yield running


@pytest.fixture
def make_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Shell]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def make(hub_url: str) -> Shell:
        return Shell(
            {**os.environ, "HF_ENDPOINT": hub_url, "HF_HOME": str(tmp_path / "hub"), "HF_TOKEN": "k"}
        )

    return make


@pytest.fixture
def shell(hub: Hub, make_shell: Callable[[str], Shell]) -> Shell:
    return make_shell(hub.url)


def shown(shell: Shell, name: str) -> dict[str, Any]:
    told: dict[str, Any] = json.loads(shell.run("show", name, "--json").out)
    return told


@pytest.mark.thorough(but="org/tiny@v1")
@pytest.mark.parametrize("name", [NAME, f"{NAME}@v1"])
def test_a_model_of_the_hub_is_kept_listed_shown_and_removed(hub: Hub, shell: Shell, name: str) -> None:
    pulled = shell.run("pull", name)
    assert (pulled.code, pulled.out.split(":")[0]) == (0, name)
    assert "fetching " in pulled.err
    assert " of 10.2 MB" in pulled.err
    assert {*hub.authorized} == {"Bearer k"}
    listed = shell.run("list").out.splitlines()
    assert listed[0].split() == ["name", "size", "format", "quantization", "pulled"]
    assert listed[1].split()[:5] == [name, "10.2", "MB", "safetensors", "BF16"]
    told = shown(shell, name)
    assert told["revision"] == COMMIT
    assert (told["architecture"], told["parameters"]) == ("LlamaForCausalLM", 4985088)
    assert (told["context_tokens"], told["tokenizer_ids"]) == (2048, 4096)
    assert (told["licence"], told["chat_template"], told["trouble"]) == ("apache-2.0", True, "")
    files = {file.name for file in Path(told["path"]).iterdir()}
    assert files == {file.name for file in DEMO_MODEL.iterdir()} | {"README.md"}
    assert "apache-2.0" in shell.run("show", name).out
    again = shell.run("pull", name)
    assert (again.code, "fetching" in again.err) == (0, False)
    refused = shell.run("rm", name)
    assert (refused.code, "pass --yes" in refused.err) == (1, True)
    assert shell.names() == [name]
    assert shell.run("rm", name, "--yes").code == 0
    assert shell.names() == []
    assert not Path(told["path"]).exists()
    assert shell.run("show", name).code == 1


def test_a_pull_that_is_killed_is_not_seen_and_the_next_one_goes_on_where_it_was(
    hub: Hub, shell: Shell
) -> None:
    hub.held = ("model.safetensors",)
    killed = subprocess.Popen(
        shell.command("pull", NAME), cwd=REPOSITORY, env=shell.environ, stderr=subprocess.DEVNULL
    )
    assert hub.half_sent.wait(TIMEOUT_S)
    part = store_folder() / "incoming" / "org%2Ftiny" / "model.safetensors.part"
    half = (hub.folder / "model.safetensors").stat().st_size // 2
    while part.stat().st_size < half:  # what is sent has not been written yet
        assert killed.poll() is None
    assert shell.names() == []
    assert "another `penstock pull` fetches org/tiny" in shell.run("pull", NAME).err
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert shell.names() == []
    assert "no model org/tiny is kept" in shell.run("show", NAME).err
    hub.held = ()
    hub.go_on.set()
    assert shell.run("pull", NAME).code == 0
    assert hub.ranges == [f"bytes={half}-"]
    assert shell.names() == [NAME]
    assert shown(shell, NAME)["trouble"] == ""


@pytest.mark.thorough(but="model.safetensors")
@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_file_that_is_not_what_the_hub_says_is_refused_and_nothing_kept(
    hub: Hub, shell: Shell, file: str
) -> None:
    hub.wrong = (file,)
    refused = shell.run("pull", NAME)
    assert refused.code == 1
    assert f"{file} is not what the hub says that it is, and has been removed" in refused.err
    assert shell.names() == []
    hub.wrong = ()
    assert shell.run("pull", NAME).code == 0
    assert shell.names() == [NAME]


def test_names_of_files_that_lead_elsewhere_are_not_fetched(hub: Hub, shell: Shell, tmp_path: Path) -> None:
    sibling = {"size": 2, "blobId": "x"}
    hub.siblings = [
        {**sibling, "rfilename": name}
        for name in ("../evil.json", "/tmp/evil.json", "a/b.json", "e\x07.json")
    ]
    assert shell.run("pull", NAME).code == 0
    assert not list(tmp_path.rglob("*evil*"))


def test_a_model_without_room_or_without_checksums_is_refused_before_anything_comes(
    hub: Hub, shell: Shell
) -> None:
    hub.siblings = [{"rfilename": "big.safetensors", "size": 1 << 42, "blobId": "x"}]
    refused = shell.run("pull", NAME)
    assert (refused.code, "GB are free at" in refused.err) == (1, True)
    hub.siblings = [{"rfilename": "big.safetensors", "size": 7}]
    refused = shell.run("pull", NAME)
    assert (refused.code, "says neither size nor checksum of big.safetensors" in refused.err) == (1, True)
    assert "fetching" not in refused.err


@pytest.mark.thorough
def test_of_several_gguf_files_one_is_named(hub: Hub, shell: Shell) -> None:
    for file in hub.folder.glob("*.safetensors"):
        file.unlink()
    for name in ("a.gguf", "b.gguf"):
        (hub.folder / name).write_bytes(b"GGUF")
    refused = shell.run("pull", NAME)
    assert (refused.code, "a.gguf, b.gguf; say which with --file" in refused.err) == (1, True)
    pulled = shell.run("pull", NAME, "--file", "b.gguf")
    assert pulled.code == 0
    assert "is kept, and cannot be served: " in pulled.err  # it is no real one
    told = shown(shell, NAME)
    assert {file.name for file in Path(told["path"]).iterdir()} == {"b.gguf", "README.md"}
    assert told["trouble"]


def test_a_model_that_the_hub_does_not_have_and_a_hub_that_is_not_there_are_sentences(
    shell: Shell, make_shell: Callable[[str], Shell]
) -> None:
    missing = shell.run("pull", "org/other")
    assert missing.code == 1
    assert "penstock pull: the " in missing.err
    gone = make_shell("http://127.0.0.1:9").run("pull", NAME)
    assert gone.code == 1
    assert (
        "where there is no hub, bring its folder or its GGUF file here and keep it with `penstock" in gone.err
    )


def test_a_folder_is_copied_under_its_name_or_another(shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    for file in DEMO_MODEL.iterdir():
        (folder / file.name).symlink_to(file)  # as the hub's own cache has them
    assert shell.run("pull", str(folder)).code == 0
    assert shell.run("pull", str(folder), "--name", "org/mine").code == 0
    assert shell.names() == ["my-llama", "org/mine"]
    for file in folder.iterdir():
        file.unlink()
    assert shown(shell, "my-llama")["trouble"] == ""


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("pull", "../nowhere"), "'../nowhere' is not there"),
        (("pull", "a\x07b"), "'a\\x07b' is no name of a model"),
        (("pull", "org/m/../../x"), "is no name of a model"),
        (("pull", NAME, "--name", "x"), "--name is for folders and files"),
        (("pull", str(DEMO_MODEL), "--name", "../x"), "'../x' is no name of a model"),
        (("pull", str(DEMO_MODEL / "config.json")), "is no GGUF file"),
        (("show", "../x"), "'../x' is no name of a model"),
        (("show", "nothing"), "no model nothing is kept; `penstock list` shows those that are"),
        (("rm", "../x", "--yes"), "'../x' is no name of a model"),
        (("rm", "nothing", "--yes"), "no model nothing is kept"),
    ],
)
def test_a_hostile_or_wrong_name_is_a_sentence(shell: Shell, argv: tuple[str, ...], sentence: str) -> None:
    refused = shell.run(*argv)
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith(f"penstock {argv[0]}: ")
    assert sentence in refused.err
    assert "\x07" not in refused.err


@pytest.mark.thorough(but="n-1-left1")
@pytest.mark.parametrize(("answer", "code", "left"), [("y", 0, []), ("n", 1, ["demo"])])
def test_a_terminal_is_asked_before_a_model_goes(
    shell: Shell, answer: str, code: int, left: list[str]
) -> None:
    assert shell.run("pull", str(DEMO_MODEL), "--name", "demo").code == 0
    with Terminal(shell.command("rm", "demo"), environ=shell.environ) as terminal:
        terminal.until("Remove demo from this machine? [y/N] ")
        terminal.enter(f"{answer}\n")
        assert terminal.end() == code
    assert shell.names() == left


def test_nobody_is_asked_about_a_model_that_is_not_there(shell: Shell) -> None:
    with Terminal(shell.command("rm", "demo"), environ=shell.environ) as terminal:
        assert terminal.end() == 1
    assert "no model demo is kept" in terminal.shown
    assert "Remove" not in terminal.shown
