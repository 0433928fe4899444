"""A model's name becomes a directory, or a typed error that says what to do."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants

from shared.errors import InvalidRequest, NotFound, Unavailable
from shared.text import model_source
from shared.text.model_source import DEMO_MODEL_NAME, resolve_model

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache of our own, and no network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


@pytest.fixture
def empty_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A hub on this host that has no model at all."""

    class NoModels(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET  # noqa: N815 - the name http.server looks for

        def log_message(self, *args: object) -> None:
            """Quiet."""

    server = http.server.HTTPServer(("127.0.0.1", 0), NoModels)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield
    server.shutdown()
    thread.join()
    server.server_close()


def put_in_cache(hub: Path) -> Path:
    snapshot = hub / "models--org--tiny" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    refs = hub / "models--org--tiny" / "refs"
    refs.mkdir()
    (refs / "main").write_text(COMMIT)
    return snapshot


def test_no_name_is_the_demo_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(model_source, "DEMO_MODEL", tmp_path)
    assert resolve_model("") == model_source.ModelSource(tmp_path, DEMO_MODEL_NAME)


def test_a_missing_demo_model_is_not_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(model_source, "DEMO_MODEL", tmp_path / "absent")
    with pytest.raises(NotFound, match="name a model directory"):
        resolve_model("")


def test_a_directory_is_named_after_its_last_part(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    assert resolve_model(str(folder)).name == "my-model"
    assert resolve_model(f"{folder}/").path == folder


def test_a_gguf_file_is_named_after_itself(tmp_path: Path) -> None:
    file = tmp_path / "my-model.Q4_1.gguf"
    file.touch()
    assert resolve_model(str(file)) == model_source.ModelSource(file, "my-model.Q4_1")


def test_a_directory_with_one_gguf_file_stands_for_it_unless_it_is_a_model_itself(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "weights.gguf").touch()
    assert resolve_model(str(folder)) == model_source.ModelSource(folder / "weights.gguf", "my-model")
    (folder / "config.json").write_text("{}")
    assert resolve_model(str(folder)).path == folder


def test_of_several_gguf_files_one_is_to_be_named(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(InvalidRequest, match=r"holds 2 GGUF models \(a.gguf, b.gguf, …\); name one of them"):
        resolve_model(str(tmp_path))


def test_a_relative_directory_goes_before_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert resolve_model("org/tiny").name == "tiny"


@pytest.mark.parametrize(
    "name", ["/absent/dir", "./absent", "word", "a/b/c", "org/..", "org/name?x=1", "../x"]
)
def test_what_is_neither_a_directory_nor_a_hub_id_is_not_found(name: str) -> None:
    with pytest.raises(NotFound, match="hub id like org/name"):
        resolve_model(name)


@pytest.mark.usefixtures("hub_cache")
def test_a_model_that_cannot_be_fetched_is_unavailable_with_what_to_do() -> None:
    with pytest.raises(Unavailable, match=r"could not be fetched .*where there is no hub, bring its folder"):
        resolve_model("org/tiny")


def test_a_model_in_the_hubs_cache_needs_no_network(hub_cache: Path) -> None:
    snapshot = put_in_cache(hub_cache)
    source = resolve_model("org/tiny")
    assert source.path.resolve() == snapshot.resolve()
    assert source.name == "org/tiny"


@pytest.mark.usefixtures("empty_hub")
def test_a_model_the_hub_does_not_have_is_not_found() -> None:
    with pytest.raises(NotFound, match="no model 'org/tiny'"):
        resolve_model("org/tiny")


def test_only_safe_files_are_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    patterns: list[str] = []

    def record(_: str, *, allow_patterns: list[str]) -> str:
        patterns.extend(allow_patterns)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", record)
    resolve_model("org/tiny")
    assert "*.safetensors" in patterns
    assert not [pattern for pattern in patterns if pattern.endswith((".bin", ".pt", ".pth", "*"))]


def test_a_served_name_takes_the_place_of_the_folder_s(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path), "ours").name == "ours"
    assert resolve_model("", "ours").name == "ours"


@pytest.mark.parametrize("name", model_source.TOKENIZER_FILES)
def test_tokenizers_of_two_folders_are_the_same_exactly_when_their_files_are(
    name: str, tmp_path: Path
) -> None:
    first, second = tmp_path / "a" / "m", tmp_path / "b" / "m"
    for folder in (first, second):
        folder.mkdir(parents=True)
        (folder / "tokenizer.json").write_text("{}")
    digests = [resolve_model(str(folder)).tokenizer_digest() for folder in (first, second)]
    assert digests[0] == digests[1]
    (second / name).write_text("other")
    assert resolve_model(str(second)).tokenizer_digest() != digests[0]
