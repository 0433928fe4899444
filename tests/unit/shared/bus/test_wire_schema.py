"""The record of what is on the wire: a change of it is a decision, and a break needs a new meaning.

With PENSTOCK_WRITE_PAGES=1 the record is written instead of compared, where the change keeps the rule.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from shared.bus.wire_schema import schema_breaks, schema_digest, wire_schema
from tests.support.data import REPOSITORY

RECORD = REPOSITORY / "shared" / "messages" / "wire.json"
HOW_TO_RECORD = (
    "what is on the wire has changed; where shared/messages/compatibility.py allows it, record it with "
    "PENSTOCK_WRITE_PAGES=1 pytest tests/unit/shared/bus/test_wire_schema.py"
)
HOW_TO_BREAK = (
    "a fleet could not be upgraded instance by instance: add fields at the end with a default that means "
    "what was meant before, or a message of a new name; else raise MEANING_VERSION"
)


def written(schema: Any) -> str:
    """Return the record, one field a line, so that a change of it can be read."""
    records = ",\n".join(
        f"  {json.dumps(name)}: [" + ",".join(f"\n   {json.dumps(field)}" for field in fields) + "]"
        for name, fields in schema["records"].items()
    )
    head = f' "meaning": {schema["meaning"]},\n "messages": {json.dumps(schema["messages"])},\n'
    return f'{{\n{head} "records": {{\n{records}\n }}\n}}\n'


def test_the_record_is_what_is_on_the_wire() -> None:
    now = wire_schema()
    recorded = json.loads(RECORD.read_text("utf-8"))
    if recorded["meaning"] == now["meaning"]:
        assert schema_breaks(recorded, now) == [], HOW_TO_BREAK
    if os.environ.get("PENSTOCK_WRITE_PAGES") == "1":
        RECORD.write_text(written(now), "utf-8")
    assert RECORD.read_text("utf-8") == written(now), HOW_TO_RECORD


def added(schema: Any) -> None:
    schema["records"]["Cancel"].append(["why", "str", "''"])
    schema["records"]["Flush"] = [["now", "bool"]]
    schema["messages"].append("Flush")


def without_default(schema: Any) -> None:
    schema["records"]["Cancel"].append(["why", "str"])


def in_front(schema: Any) -> None:
    schema["records"]["Cancel"].insert(0, ["why", "str", "''"])


def renamed(schema: Any) -> None:
    schema["records"]["Cancel"][0][0] = "why"


def of_another_type(schema: Any) -> None:
    schema["records"]["Cancel"][0][1] = "int"


def with_another_default(schema: Any) -> None:
    schema["records"]["Accepted"][0][2] = "1"


def removed(schema: Any) -> None:
    schema["records"]["Cancel"].clear()


def message_removed(schema: Any) -> None:
    schema["messages"].remove("Cancel")


def changed(change: Callable[[Any], None]) -> Any:
    schema = copy.deepcopy(dict(wire_schema()))
    change(schema)
    return schema


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (without_default, "Cancel has a new field why without a default"),
        (in_front, "field 1 of Cancel was `reason: str` and is `why: str = ''`"),
        (renamed, "field 1 of Cancel was `reason: str` and is `why: str`"),
        (of_another_type, "field 1 of Cancel was `reason: str` and is `reason: int`"),
        (
            with_another_default,
            "field 1 of Accepted was `cached_tokens: int = 0` and is `cached_tokens: int = 1`",
        ),
        (removed, "Cancel has lost its field reason"),
        (message_removed, "the message Cancel is gone, which an older sender still sends"),
    ],
)
def test_a_break_of_the_rule_is_told(change: Callable[[Any], None], sentence: str) -> None:
    assert schema_breaks(wire_schema(), changed(change))[0] == sentence


def test_a_field_with_a_default_and_a_new_message_break_nothing() -> None:
    assert schema_breaks(wire_schema(), changed(added)) == []


def test_a_record_that_is_a_default_may_gain_fields() -> None:
    fields = {name: default for name, _, *default in wire_schema()["records"]["Heartbeat"]}
    assert fields["worker"] == ["WorkerReport()"]


def test_the_digest_is_that_of_the_fields() -> None:
    assert schema_digest() == schema_digest() < 1 << 32
