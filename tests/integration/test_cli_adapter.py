"""`penstock adapter` as a process: what it writes, whom it waits for, how it ends. The workers are played."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from shared.files.adapter_file import AdapterEntry, WantedAdapter, put_adapters, read_adapter_file
from shared.messages import AdapterReport
from shared.tasks import cancel_until_done
from tests.integration.gateway_peers import MODEL, Fleet, Peer, fleet
from tests.integration.test_cli_fleet import penstock
from tests.support.wait import POLL_S

DIGEST = "0123456789abcdef" * 2
Answer = Callable[[Peer, AdapterEntry], AdapterReport]


def loaded(peer: Peer, entry: AdapterEntry) -> AdapterReport:
    return AdapterReport(entry.name, entry.version, DIGEST, 16)


def refused_at_decode(peer: Peer, entry: AdapterEntry) -> AdapterReport:
    if peer.role == "decode":
        return AdapterReport(entry.name, entry.version, "", 0, "'/sql' has no adapter_config.json")
    return loaded(peer, entry)


def another_at_decode(peer: Peer, entry: AdapterEntry) -> AdapterReport:
    return AdapterReport(entry.name, entry.version, DIGEST if peer.role == "decode" else DIGEST[::-1], 16)


OWNERS = ("acme", "rival")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "adapters.toml"


@asynccontextmanager
async def workers(nats_url: str, file: Path, answer: Answer | None = loaded) -> AsyncIterator[Fleet]:
    """A prefill and a decode worker that follow the file as `answer` says; None: they do not."""

    async def follow(peers: Fleet) -> None:
        while answer is not None:
            entries = await asyncio.to_thread(read_adapter_file, file)
            for peer in list(peers.peers.values()):
                model = peer.fields.get("model", MODEL)
                said = tuple(answer(peer, entry) for entry in entries if entry.base == model)
                if peer.fields.get("adapters", ()) != said:
                    peer.say(adapters=said)
            await asyncio.sleep(POLL_S)

    async with fleet(nats_url, "prefill", "decode", "tokenizer") as peers:
        following = asyncio.create_task(follow(peers))
        try:
            yield peers
        finally:
            await cancel_until_done(following)


async def adapter(nats_url: str, *argv: str) -> tuple[int, str, str]:
    return await penstock("adapter", *argv, "--nats-url", nats_url)


async def load(nats_url: str, file: Path, *options: str) -> tuple[int, str, str]:
    return await adapter(nats_url, "load", "sql", "/models/sql", "--file", str(file), *options)


async def test_a_load_is_written_down_and_over_when_all_workers_have_it(nats_url: str, file: Path) -> None:
    async with workers(nats_url, file):
        code, out, err = await load(nats_url, file)
    (entry,) = read_adapter_file(file)
    assert (entry.base, entry.name, entry.directory) == (MODEL, "sql", "/models/sql")
    assert (code, err) == (0, "")
    assert out == f"{MODEL}:sql is on decode-0, prefill-0 (digest 01234567, rank 16)\n"


async def test_a_load_may_name_tenants_and_later_ones_keep_them(nats_url: str, file: Path) -> None:
    async with workers(nats_url, file):
        for name in ("sql@acme+rival", "sql"):
            code, _, err = await adapter(nats_url, "load", name, "/models/sql", "--file", str(file))
            assert (code, err) == (0, "")
            (entry,) = read_adapter_file(file)
            assert (entry.name, entry.tenants) == ("sql", ("acme", "rival"))


@pytest.mark.thorough
async def test_json_says_what_each_worker_has(nats_url: str, file: Path) -> None:
    async with workers(nats_url, file, refused_at_decode):
        code, out, err = await load(nats_url, file, "--json")
    said = json.loads(out)
    assert code == 1
    assert "decode-0: '/sql' has no adapter_config.json" in err
    assert (said["adapter"], said["waiting"]) == (f"{MODEL}:sql", [])
    found = {row["instance"]: (row["digest"], bool(row["error"])) for row in said["instances"]}
    assert found == {"decode-0": ("", True), "prefill-0": (DIGEST, False)}


async def test_workers_with_other_weights_under_the_name_are_a_failure(nats_url: str, file: Path) -> None:
    async with workers(nats_url, file, another_at_decode):
        code, _, err = await load(nats_url, file)
    assert code == 1
    assert f"{MODEL}:sql is not the same for all workers" in err


async def test_workers_that_do_not_follow_are_named_when_the_time_is_up(nats_url: str, file: Path) -> None:
    async with workers(nats_url, file, None):
        code, out, err = await load(nats_url, file, "--timeout", "0.3")
    assert (code, out) == (3, "")
    assert "prefill-0, decode-0" in err or "decode-0, prefill-0" in err
    assert "did not follow within 0.3 s: is adapter_file the same file there?" in err


async def test_an_unload_is_over_when_no_worker_has_it(nats_url: str, file: Path) -> None:
    put_adapters(file, [WantedAdapter(MODEL, "sql", "/sql"), WantedAdapter(MODEL, "chat", "/chat")])
    async with workers(nats_url, file):
        code, out, err = await adapter(nats_url, "unload", "sql", "--file", str(file))
    assert (code, out, err) == (0, f"{MODEL}:sql is unloaded\n", "")
    assert [entry.name for entry in read_adapter_file(file)] == ["chat"]


async def test_what_is_not_there_cannot_be_unloaded(nats_url: str, file: Path) -> None:
    async with workers(nats_url, file):
        code, _, err = await adapter(nats_url, "unload", "sql", "--file", str(file))
    assert code == 2
    assert f"has no {MODEL}:sql: there is nothing" in err


async def test_the_list_shows_what_there_is_who_has_it_and_what_went_wrong(nats_url: str, file: Path) -> None:
    async with workers(nats_url, file, None) as peers:
        _, empty, _ = await adapter(nats_url, "list")
        peers["prefill-0"].say(adapters=(AdapterReport("sql", 1, DIGEST, 16),))
        both = (AdapterReport("sql", 1, DIGEST, 16), AdapterReport("chat", 2, "", 0, "it is damaged", OWNERS))
        peers["decode-0"].say(adapters=both)
        code, out, _ = await adapter(nats_url, "list")
        _, as_json, _ = await adapter(nats_url, "list", "--json")
    assert empty == "no worker has an adapter; `penstock adapter load NAME DIR` loads one\n"
    assert code == 0
    assert [line.split() for line in out.splitlines()] == [
        ["adapter", "digest", "rank", "tenants", "instances", "error"],
        [f"{MODEL}:chat", "-", "-", "acme", "rival", "decode-0", "it", "is", "damaged"],
        [f"{MODEL}:sql", "01234567", "16", "all", "decode-0", "prefill-0"],
    ]
    chat, sql = json.loads(as_json)["adapters"]
    assert (chat["error"], sql["instances"]) == ("it is damaged", ["decode-0", "prefill-0"])


@pytest.mark.thorough
async def test_a_model_that_nobody_serves_and_a_choice_of_several_are_said(nats_url: str, file: Path) -> None:
    async with workers(nats_url, file) as peers:
        code, _, unknown = await load(nats_url, file, "--base", "x")
        await peers.add("decode", 1, model="other")
        again, _, several = await load(nats_url, file)
    assert (code, again) == (2, 2)
    assert f"no worker has the model 'x': there is {MODEL}" in unknown
    assert f"several models are served: pass --base with one of other, {MODEL}" in several
    assert read_adapter_file(file) == ()


@pytest.mark.thorough
async def test_an_adapter_of_a_draft_is_for_speculators_alone(nats_url: str, file: Path) -> None:
    async with workers(nats_url, file) as peers:
        await peers.add("speculator", model="draft")
        code, out, _ = await load(nats_url, file, "--base", "draft")
    assert (code, out) == (0, "draft:sql is on speculator-0 (digest 01234567, rank 16)\n")


async def test_a_name_that_is_none_is_a_wrong_option(nats_url: str, file: Path) -> None:
    code, _, err = await adapter(nats_url, "load", "a:b", "/sql", "--file", str(file))
    assert code == 2
    assert "'a:b' is no name for an adapter" in err


@pytest.mark.thorough
async def test_the_file_is_that_of_the_configuration_where_none_is_named(
    nats_url: str, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = file.with_name("penstock.toml")
    config.write_text('[model]\nadapter_file = "adapters.toml"\n')
    monkeypatch.setenv("PENSTOCK_CONFIG", str(config))
    async with workers(nats_url, file):
        code, _, err = await adapter(nats_url, "load", "sql", "/models/sql")
    assert (code, err) == (0, "")
    assert [entry.name for entry in read_adapter_file(file)] == ["sql"]


async def test_without_a_file_and_without_a_stack_it_says_what_to_pass(nats_url: str, tmp_path: Path) -> None:
    code, _, err = await adapter(nats_url, "load", "sql", "/sql", "--state-dir", str(tmp_path))
    assert code == 1
    assert "or pass --file FILE" in err


async def test_a_file_that_cannot_be_written_is_a_sentence(nats_url: str, tmp_path: Path) -> None:
    file = tmp_path / "nothing" / "adapters.toml"
    async with workers(nats_url, file):
        code, _, err = await load(nats_url, file)
    assert code == 1
    assert f"the adapter file {file} cannot be written (No such file or directory)" in err
