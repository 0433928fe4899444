"""A profile of what a stack said: heartbeats, metrics of a real page, and what is not known."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from services.cli.capacity import metrics_page
from services.cli.capacity.metrics_page import parsed_metrics, read_metrics
from services.cli.capacity.profile_file import read_profile
from services.cli.capacity.stack_profile import (
    StackSightings,
    missing_fields,
    profile_document,
    rising_steps,
)
from services.cli.fleet.fleet_watch import Seen
from shared.blocks.layer_groups import KvGroups
from shared.errors import Unavailable
from shared.messages import DecodeReport, Heartbeat, WorkerReport

PAGE = """\
# TYPE penstock_hop_seconds histogram
penstock_hop_seconds_sum{hop="gateway",phase="bus"} 0.5
penstock_hop_seconds_sum{hop="prefill",phase="prefill.queue"} 9.0
# TYPE penstock_requests counter
penstock_requests_total{outcome="finished"} 7
penstock_requests_total{outcome="failed"} 3
"""


def seen(role: str, sent: int, **fields: object) -> Seen:
    return Seen(Heartbeat(role, f"{role}-0", 1, "ready", sent_unix_us=sent, **fields), 0, 0.0, 0.0)  # type: ignore[arg-type]  # fields by name


def decode(sent: int, live: int, step_us: int) -> Seen:
    return seen(
        "decode",
        sent,
        live=live,
        capacity=8,
        model="small",
        worker=WorkerReport(kv_blocks=1024, kv_groups=KvGroups(1, 1, 64), most_threads=2),
        decode=DecodeReport(step_us=step_us, transfer_us=4000),
    )


def sighted() -> StackSightings:
    sightings = StackSightings()
    sightings.look([decode(1, 1, 10_000), seen("gateway", 1)])
    sightings.look([decode(1, 1, 99_000), seen("prefill", 2, worker=WorkerReport(tokens_per_s=900.0))])
    sightings.look([decode(3, 20, 30_000), seen("detokenizer", 2), seen("tokenizer", 2)])
    sightings.look([decode(4, 0, 30_000)])
    return sightings


CPU = "process_cpu_seconds_total"
BEFORE = {
    "gateway-0": {CPU: 1.0, "penstock_requests_total": 10.0, "penstock_generation_tokens_total": 0.0},
    "tokenizer-0": {CPU: 1.0},
    "detokenizer-0": {CPU: 1.0},
}
AFTER = {
    "gateway-0": {
        CPU: 1.2,
        "penstock_requests_total": 110.0,
        "penstock_generation_tokens_total": 1000.0,
        "penstock_hop_seconds_sum/admit": 0.2,
        "penstock_hop_seconds_sum/tokenize": 0.1,
        "penstock_hop_seconds_sum/bus": 0.3,
        "penstock_hop_seconds_sum/deliver": 0.1,
    },
    "tokenizer-0": {CPU: 1.1},
    "detokenizer-0": {CPU: 1.5},
}


def test_a_stack_under_load_has_a_profile_that_is_read(tmp_path: Path) -> None:
    document = profile_document(sighted(), BEFORE, AFTER, 2)
    assert missing_fields(document) == []
    path = tmp_path / "stack.json"
    path.write_text(json.dumps(document))
    profile = read_profile(path)
    assert profile.name == "small"
    assert profile.decode.step_ms.points == ((1, 10.0), (8, 30.0))
    assert (profile.decode.slots, profile.decode.kv_blocks, profile.decode.cores) == (8, 512, 2)
    assert profile.decode.transfer_ms == 4
    assert profile.prefill.tokens_per_s == 900
    assert profile.gateway.cpu_ms == pytest.approx(3)
    assert profile.gateway.token_cpu_ms == pytest.approx(0.5)
    assert profile.gateway.overhead_ms == pytest.approx(4)  # 7 ms of the way less the 3 of its CPU


def test_what_an_idle_stack_does_not_say_is_named() -> None:
    sightings = StackSightings()
    sightings.look([decode(1, 0, 0), seen("gateway", 1)])
    document = profile_document(sightings, BEFORE, BEFORE, 2)
    assert missing_fields(document) == ["gateway.cpu_ms", "prefill.tokens_per_s", "decode.step_ms"]


def test_prompts_that_decode_workers_compute_tell_the_speed_where_no_other_does() -> None:
    sightings = StackSightings()
    sightings.look([seen("decode", 1, decode=DecodeReport(prompt_tokens_per_s=700.0))])
    assert profile_document(sightings, {}, {}, 2)["prefill"]["tokens_per_s"] == 700.0
    sightings.look([seen("prefill", 1, worker=WorkerReport(tokens_per_s=900.0))])
    assert profile_document(sightings, {}, {}, 2)["prefill"]["tokens_per_s"] == 900.0


def test_who_has_gone_is_forgotten() -> None:
    sightings = sighted()
    sightings.keep(["decode-0"])
    assert set(sightings.beats) == {"decode-0"}


def test_steps_do_not_fall_where_a_machine_was_busy() -> None:
    assert rising_steps({4: [9.0], 1: [10.0, 12.0, 11.0], 2: [10.5], 8: [20.0]}) == [
        [1, 11.0],
        [2, 11.0],
        [4, 11.0],
        [8, 20.0],
    ]


def test_a_page_of_metrics_is_summed_over_labels() -> None:
    found = parsed_metrics(PAGE)
    assert found["penstock_requests_total"] == 10
    assert found["penstock_hop_seconds_sum/bus"] == 0.5


def test_a_page_of_something_else_is_an_error() -> None:
    with pytest.raises(ValueError, match="none of Prometheus"):
        parsed_metrics("{x")


async def test_metrics_that_nobody_serves_are_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    for wrong in (address, "nowhere", "127.0.0.1:port"):
        with pytest.raises(Unavailable, match="cannot be read"):
            await read_metrics(wrong)


class _Page(BaseHTTPRequestHandler):
    text = PAGE.encode()

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/metrics" else 404)
        self.send_header("Content-Length", str(len(self.text)))
        self.end_headers()
        self.wfile.write(self.text)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def served() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def test_a_page_is_read_up_to_its_limit(served: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_page, "MAX_METRICS_BYTES", len(PAGE))
    assert (await read_metrics(served))["penstock_requests_total"] == 10
    monkeypatch.setattr(metrics_page, "MAX_METRICS_BYTES", len(PAGE) - 1)
    with pytest.raises(Unavailable, match=f"larger than {len(PAGE) - 1} bytes"):
        await read_metrics(served)
