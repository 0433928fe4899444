"""What Prometheus is told of the fleet."""

from __future__ import annotations

import json

from services.gateway.scrape_targets import scrape_targets
from tests.integration.gateway_peers import heartbeat


def test_every_instance_is_a_target_with_its_role_and_name() -> None:
    beats = [
        heartbeat("prefill", "prefill-0", metrics="127.0.0.1:9101", host="one"),
        heartbeat("decode", "decode-0", metrics="10.0.0.2:9102", host="two"),
    ]
    assert json.loads(scrape_targets(beats)) == [
        {
            "targets": ["10.0.0.2:9102"],
            "labels": {"role": "decode", "instance": "decode-0", "host": "two"},
        },
        {
            "targets": ["127.0.0.1:9101"],
            "labels": {"role": "prefill", "instance": "prefill-0", "host": "one"},
        },
    ]


def test_an_instance_without_an_address_is_no_target() -> None:
    assert json.loads(scrape_targets([heartbeat("decode", "decode-0", metrics="")])) == []
