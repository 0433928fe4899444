"""`penstock status` says where each instance is, and how much of a gateway's work leaves its region."""

from __future__ import annotations

import json
import time

from services.cli.fleet.fleet_watch import Seen
from services.cli.fleet.status import _shown
from shared.messages import RegionReport
from tests.support.heartbeats import make_heartbeat

REPORTS = (RegionReport("eu", 0, 120), RegionReport("ap", 0, 0), RegionReport("us", 31_200, 3))


def shown(*, as_json: bool) -> str:
    now_s = time.monotonic()
    gateway = make_heartbeat("gateway", "gateway-0", region="eu", zone="eu-1", regions=REPORTS)
    decode = make_heartbeat("decode", "decode-0", region="us")
    return _shown([Seen(beat, 0, now_s, now_s) for beat in (gateway, decode)], as_json=as_json)


def test_the_table_has_the_region_and_zone_of_each_instance() -> None:
    _, gateway, decode, *_ = shown(as_json=False).splitlines()
    assert gateway.endswith("eu/eu-1")
    assert decode.endswith("us")


def test_below_it_stands_how_far_other_regions_are_and_how_many_routes_went_there() -> None:
    assert (
        "gateway-0 in eu, 123 routes: ap not measured yet, 0 there; us 31.2 ms away, 3 there"
        in shown(as_json=False).splitlines()
    )


def test_json_has_the_same() -> None:
    gateway, decode = json.loads(shown(as_json=True))["instances"]
    assert (gateway["region"], gateway["zone"]) == ("eu", "eu-1")
    assert gateway["regions"][2] == {"region": "us", "round_trip_us": 31_200, "routes": 3}
    assert decode["regions"] == []
