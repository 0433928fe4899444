"""The bus of `penstock up` lets in nobody but the stack, and each part of it says only what is its to say."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

from protos.penstock.v1 import inference_pb2_grpc as rpc
from shared.bus import Bus, codec
from shared.bus.credentials import Credentials
from shared.bus.nats_server import NatsServer
from shared.bus.subjects import CANCEL_ALL, fleet, inbox, subject_of
from shared.errors import Unavailable
from shared.messages import Cancel, Envelope, Message, Text, Tokens
from tests.e2e.conftest import GetStack, options
from tests.e2e.test_ways_in import penstock
from tests.support.certificate import make_certificate
from tests.support.client import connect, generate, request
from tests.support.heartbeats import make_heartbeat
from tests.support.oracle import Oracle
from tests.support.stack import Stack, metrics_of

FOREIGN = 88


@asynccontextmanager
async def forger(stack: Stack, user: str) -> AsyncIterator[tuple[Client, list[str]]]:
    """A client with the credentials of `user`, and what the server refuses it."""
    credentials, refused = stack.credentials(user), list[str]()

    async def on_error(error: Exception) -> None:
        refused.append(str(error))

    client = await nats.connect(
        stack.nats, user=credentials.user, password=credentials.password, error_cb=on_error
    )
    try:
        yield client, refused
    finally:
        await client.close()


def dropped(stack: Stack, reason: str) -> float:
    """By all instances together."""
    lines = itertools.chain.from_iterable(metrics_of(one).splitlines() for one in stack.instances())
    wanted = f'penstock_dropped_messages_total{{reason="{reason}"}}'
    return sum(float(line.split()[-1]) for line in lines if line.startswith(wanted))


def foreign_tokens(request_id: str, position: int) -> Tokens:
    return Tokens((request_id,), (1,), (position,), ((FOREIGN,),), ("",), ((),), ((),))


@pytest.mark.thorough(but="3-True-nats")
@pytest.mark.parametrize(("decode", "drafts", "transport"), [(3, True, "nats"), (1, True, "shm")])
async def test_everything_that_a_stack_does_is_permitted(
    get_stack: GetStack, oracle: Oracle, decode: int, drafts: bool, transport: str
) -> None:
    stack = get_stack(decode, drafts, transport)
    prompt = oracle.encode("Once upon a time")
    async with connect(stack.grpc) as stub:
        answer = await generate(stub, request(prompt, max_tokens=60))
        call = stub.Generate(request(prompt, max_tokens=400, ignore_eos=True))
        async for event in call:
            if event.text.token_ids:
                break
        call.cancel()
    assert answer.ids == oracle.greedy(prompt, 60, answer.ids)
    await stack.until_idle()
    status, _ = await penstock(stack, "status")
    audit, _ = await penstock(stack, "audit", "--wait", "5")
    assert (status, audit) == (0, 0)
    assert dropped(stack, "permission") == 0
    assert not [line for line in stack.log if "bus_permission_denied" in line or "Violation" in line]


async def test_a_stranger_does_not_get_in(get_stack: GetStack) -> None:
    with pytest.raises(Unavailable, match="Authorization Violation"):
        await Bus.connect(get_stack().nats, name="stranger")


def forgeries(request_id: str, position: int) -> list[tuple[str, str, Message]]:
    """User, subject and message of what foreign hands could once do to a live request."""
    now = make_heartbeat(
        "decode",
        "decode-0",
        state="stopped",
        sent_unix_us=1,
        host="h",
        pid=1,
        metrics="h:1",
        model="m",
        capacity=8,
    )
    text = Text((request_id,), (1,), (position,), ((FOREIGN,),), ("x",), ("stop",), ((),), ((),))
    tokens, cancel = foreign_tokens(request_id, position), Cancel("cancelled")
    detokenizer, gateway = inbox("detokenizer", "detokenizer-0"), inbox("gateway", "gateway-0")
    beats = fleet("decode", "decode-0")
    forged: list[tuple[str, str, Message]] = []
    for user in ("tokenizer-0", "detokenizer-0", "prefill-0", "operator"):
        forged += [
            (user, subject_of(CANCEL_ALL, "Cancel", "gateway-0"), cancel),
            (user, subject_of(inbox("prefill", "prefill-0"), "Cancel", user), cancel),
            (user, subject_of(beats, "Heartbeat", "decode-0"), now),
            (user, subject_of(detokenizer, "Tokens", "decode-0"), tokens),
            (user, subject_of(gateway, "Text", "tokenizer-0"), text),
        ]
    return forged


async def test_forged_tokens_heartbeats_and_cancels_are_refused_and_the_answer_is_its_own(
    get_stack: GetStack, oracle: Oracle
) -> None:
    stack = get_stack()
    prompt = oracle.encode("Once upon a time")
    async with connect(stack.grpc) as stub:
        call = stub.Generate(request(prompt, max_tokens=300))
        ids: list[int] = []
        async for event in call:
            ids += event.text.token_ids
            if event.WhichOneof("event") != "prompt":
                continue
            forged = forgeries(event.prompt.request_id, len(prompt) + 1)
            for user, mine in itertools.groupby(forged, key=lambda one: one[0]):
                async with forger(stack, user) as (client, refused):
                    sent = list(mine)
                    for _, subject, message in sent:
                        data = codec.encode(message, Envelope(event.prompt.request_id, 1))
                        await client.publish(subject, data)
                    await client.flush()
                    await client.flush()
                    assert len(refused) == len(sent)
    assert ids == oracle.greedy(prompt, 300, ids)


async def test_a_decode_worker_cannot_write_into_the_answer_of_another(
    get_stack: GetStack, oracle: Oracle
) -> None:
    """It may write to the detokenizer: the server cannot know whose request it is, the detokenizer does."""
    stack = get_stack(3, True, "nats")
    prompt = oracle.encode("Once upon a time")
    before = dropped(stack, "foreign_tokens")
    async with (
        forger(stack, "decode-0") as (first, _),
        forger(stack, "decode-1") as (second, refused),
        connect(stack.grpc) as stub,
    ):
        for _ in range(20):  # until an attack came while the answer was still being made
            ids = await attacked(stub, stack, prompt, {"decode-0": first, "decode-1": second})
            assert ids == oracle.greedy(prompt, 200, ids)
            if dropped(stack, "foreign_tokens") > before:
                break
    assert dropped(stack, "foreign_tokens") > before
    assert refused == []


async def attacked(
    stub: rpc.InferenceStub, stack: Stack, prompt: list[int], forgers: dict[str, Client]
) -> list[int]:
    """The ids of an answer, at the beginning of which workers that do not hold it send tokens for it."""
    ids: list[int] = []
    async for event in stub.Generate(request(prompt, max_tokens=200)):
        if event.text.token_ids and not ids:
            held = await stack.holdings()
            request_ids = {one.request_id for holds in held.values() for one in holds if one.request_id}
            for user, client in forgers.items():
                if user in held:
                    continue
                subject = subject_of(inbox("detokenizer", "detokenizer-0"), "Tokens", user)
                for request_id, position in itertools.product(request_ids, range(len(prompt), 512)):
                    data = codec.encode(foreign_tokens(request_id, position), Envelope())
                    await client.publish(subject, data)
                await client.flush()
        ids += event.text.token_ids
    return ids


def test_no_password_is_on_a_command_line_in_a_log_or_in_stack_json(get_stack: GetStack) -> None:
    stack = get_stack()
    folder = Path(str(stack.description["nats_credentials"])).parent
    users = [*(instance.id for instance in stack.instances()), "operator"]
    passwords = [stack.credentials(user).password for user in users]
    assert len(set(passwords)) == len(users)
    assert min(map(len, passwords)) >= 32
    commands = "".join(command_line(pid) for pid in Path("/proc").iterdir() if pid.name.isdigit())
    shown = commands + "\n".join(stack.log) + (stack.state_dir / "stack.json").read_text()
    assert "nats.conf" in commands
    assert not [password for password in passwords if password in shown]
    assert folder.stat().st_mode & 0o077 == 0
    assert [path.name for path in folder.iterdir() if path.stat().st_mode & 0o077] == []


def command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has just ended
        return ""


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
async def test_a_stack_works_over_tls_with_a_server_of_the_user(
    model_dir: Path, draft_dir: Path, oracle: Oracle, tmp_path: Path
) -> None:
    certificate = make_certificate(tmp_path / "certificate")
    server = NatsServer(extra_config=f"{certificate.server_config}\nauthorization {{ user: u, password: p }}")
    await server.start()
    Credentials("u", "p", str(certificate.certificate)).write(tmp_path / "user.toml")
    environ = {"PENSTOCK_NATS_CREDENTIALS": str(tmp_path / "user.toml")}
    prompt = oracle.encode("Once upon a time")
    try:
        with Stack(
            *options(model_dir, draft_dir, 1, "nats"), "--nats-url", server.url, environ=environ
        ) as stack:
            async with connect(stack.grpc) as stub:
                answer = await generate(stub, request(prompt, max_tokens=60))
            assert answer.ids == oracle.greedy(prompt, 60, answer.ids)
            await stack.until_idle()
            status, _ = await penstock(stack, "status")
            assert status == 0
    finally:
        await server.stop()
