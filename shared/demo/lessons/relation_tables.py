"""The relations of each kind of subject, from the files beside this one.

A file has `relations` with the fields of `Relation`, and `choices`: lists that slots name as they do drawers.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from shared.demo.lessons.relations import DRAWERS, Relation, Slot

KINDS = ("services", "devices", "towns", "people", "nature", "companies")


@cache
def read_relations(kind: str) -> tuple[Relation, ...]:
    """Read the relations of one of KINDS, in order. Raises ValueError for a slot that is neither drawer nor
    list of choices."""
    table = json.loads((Path(__file__).parent / f"{kind}.json").read_text("utf-8"))
    choices = {name: tuple(items) for name, items in table.get("choices", {}).items()}
    return tuple(_relation(fields, choices) for fields in table["relations"])


def _relation(fields: dict[str, Any], choices: dict[str, tuple[str, ...]]) -> Relation:
    return Relation(
        says=tuple(fields["says"]),
        asks=tuple(fields["asks"]),
        slots={place: _slot(slot, choices) for place, slot in fields.get("slots", {}).items()},
        answer=fields.get("answer", "{v}"),
        backwards=tuple(fields.get("backwards", ())),
    )


def _slot(slot: str | list[str], choices: dict[str, tuple[str, ...]]) -> Slot:
    if isinstance(slot, list):
        return tuple(slot)
    if slot in choices:
        return choices[slot]
    if slot not in DRAWERS:
        raise ValueError(f"nothing draws {slot!r}: it is no drawer and no list of choices")
    return slot
