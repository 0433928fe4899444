"""Messages survive the wire unchanged; bytes that are not exactly a message are refused."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from typing import Any

import msgpack
import pytest
import structlog.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from shared import messages
from shared.bus import codec
from shared.errors import ProtocolError, UnknownMessage
from shared.messages import (
    ASKS_THAT_DECIDE,
    MEANING_VERSION,
    Accepted,
    Envelope,
    Failure,
    Heartbeat,
    Tokens,
)

COLUMNAR = (messages.Tokens, messages.Text, messages.DraftCommit, messages.DraftBlock)
TYPES = sorted(codec.MESSAGE_TYPES.values(), key=lambda cls: cls.__name__)


@cache
def values_of(hint: Any, rows: int | None = None) -> st.SearchStrategy[Any]:
    """Values of an annotation; the columns of one columnar message have `rows` entries each."""
    scalars: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(-(1 << 63), (1 << 64) - 1),
        float: st.floats(allow_nan=False),
        str: st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        bytes: st.binary(max_size=8),
        bool: st.booleans(),
    }
    if hint in scalars:
        return scalars[hint]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return st.builds(hint, **{name: values_of(of) for name, of in hints.items()})
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(st.none(), values_of(args[0]))
    if args[-1] is not Ellipsis:
        return st.tuples(*[values_of(arg) for arg in args])
    minimum, maximum = (rows, rows) if rows is not None else (0, 3)
    return st.lists(values_of(args[0]), min_size=minimum or 0, max_size=maximum).map(tuple)


@cache
def message_of(cls: Any, rows: int | None = None) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls)
    return st.builds(cls, **{name: values_of(hint, rows) for name, hint in hints.items()})


def messages_of(cls: Any) -> st.SearchStrategy[Any]:
    if cls not in COLUMNAR:
        return message_of(cls)
    return st.integers(0, 3).flatmap(lambda rows: message_of(cls, rows))


@pytest.mark.parametrize("cls", TYPES)
@settings(max_examples=8)
@given(data=st.data())
def test_every_message_survives_the_wire(cls: type[Any], data: st.DataObject) -> None:
    message = data.draw(messages_of(cls))
    envelope = Envelope("gw-0.abc", 3, 1_700_000_000_000_000, "gw-0", "00-trace", tenant="1f")
    got_envelope, got = codec.decode(codec.encode(message, envelope), reply="_INBOX.x")
    assert got == message
    assert got_envelope == dataclasses.replace(envelope, reply="_INBOX.x")


@settings(max_examples=300)
@given(st.binary(max_size=200))
def test_random_bytes_raise_only_protocol_errors(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        codec.decode(data)


def wire(**changes: Any) -> list[Any]:
    head: dict[str, Any] = {
        "type": "Accepted", "version": MEANING_VERSION, "request_id": "r", "epoch": 1,
        "deadline_us": 0, "origin": "", "trace": "", "tenant": "", "fields": [7],
    }  # fmt: skip
    head.update(changes)
    return list(head.values())


def decode_list(head: Any) -> Any:
    return codec.decode(msgpack.packb(head))[1]


def test_the_hand_made_message_is_good_so_that_the_bad_ones_below_are_bad_for_one_reason() -> None:
    assert decode_list(wire()) == Accepted(7)


def test_every_truncation_of_a_message_is_refused() -> None:
    data = codec.encode(Failure("overloaded", "full", "decode", 5), Envelope("r"))
    for end in range(len(data)):
        with pytest.raises(ProtocolError):
            codec.decode(data[:end])


def test_bytes_after_a_message_are_refused() -> None:
    with pytest.raises(ProtocolError):
        codec.decode(codec.encode(Accepted(), Envelope()) + b"\x00")


@pytest.mark.parametrize("change", [{"type": "Acceptance"}, {"version": 99}, {"version": "1"}])
def test_an_unknown_type_or_version_is_an_unknown_message(change: dict[str, Any]) -> None:
    with pytest.raises(UnknownMessage):
        decode_list(wire(**change))


@pytest.mark.parametrize(
    "change",
    [
        {"request_id": 5},
        {"epoch": -1},
        {"epoch": True},
        {"deadline_us": 1.5},
        {"deadline_us": -1},
        {"origin": None},
        {"trace": b"x"},
        {"tenant": 7},
        {"fields": ["7"]},
        {"fields": [True]},
        {"fields": {"cached_tokens": 7}},
        {"fields": None},
    ],
)
def test_a_field_of_the_wrong_type_is_a_protocol_error(change: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError) as caught:
        decode_list(wire(**change))
    assert not isinstance(caught.value, UnknownMessage)


@pytest.mark.parametrize("head", [None, 5, "Accepted", [], ["Accepted"], {"type": "Accepted"}, [1, 1]])
def test_what_does_not_begin_like_a_message_is_refused(head: Any) -> None:
    with pytest.raises(ProtocolError):
        decode_list(head)


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": ["1", 2]},
        {"epochs": [True, 2]},
        {"epochs": 7},
        {"token_ids": [[1], ["2"]]},
        {"token_ids": [[1], 2]},
        {"token_ids": [[1], None]},
        {"logprobs": [[], None]},
        {"logprobs": [[], [[5]]]},
        {"logprobs": [[], [7]]},
        {"logprobs": [[], {}]},
    ],
)
def test_one_wrong_value_in_a_column_is_a_protocol_error(change: dict[str, Any]) -> None:
    columns: dict[str, Any] = {
        "request_ids": ["r", "s"], "epochs": [1, 2], "positions": [5, 6], "token_ids": [[1], [2]],
        "finish": ["", ""], "logprobs": [[], []], "marks": [[], []],
    }  # fmt: skip
    fields = list((columns | change).values())
    decode_list(wire(type="Tokens", fields=list(columns.values())))
    with pytest.raises(ProtocolError) as caught:
        decode_list(wire(type="Tokens", fields=fields))
    assert not isinstance(caught.value, UnknownMessage)


def test_columns_of_unequal_length_are_refused() -> None:
    ragged = Tokens(("r",), (1,), (5, 6), ((1,),), ("",), ((),), ((),))
    with pytest.raises(ProtocolError, match=r"Tokens\.positions has 2 rows instead of 1"):
        codec.decode(codec.encode(ragged, Envelope()))


def test_a_message_over_the_size_limit_is_not_even_parsed() -> None:
    with pytest.raises(ProtocolError, match="over the limit"):
        codec.decode(b"\xc0" * (codec.MAX_MESSAGE_BYTES + 1))


def test_deep_nesting_is_refused_and_does_not_exhaust_the_stack() -> None:
    with pytest.raises(ProtocolError):
        codec.decode(b"\x91" * 100_000 + b"\xc0")


def blank_fields(record: type) -> list[object]:
    """Every field of a record and of those in it, as msgpack would hold it, with integers for floats."""
    blank: dict[type, object] = {int: 0, float: 0, bytes: b"", str: "x", bool: False}
    return [
        blank_fields(hint)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint)
        else blank.get(hint, [])
        for hint in typing.get_type_hints(record).values()
    ]


def test_an_integer_is_a_good_float() -> None:
    got = decode_list(wire(type="Heartbeat", fields=blank_fields(Heartbeat)))
    assert isinstance(got.worker.tokens_per_s, float)


def test_what_is_no_dataclass_cannot_be_packed() -> None:
    with pytest.raises(TypeError):
        codec.encode(Failure(object(), ""), Envelope())  # type: ignore[arg-type]  # the point of the test


# ---- two versions ------------------------------------------------------------------------------


def some(hint: Any) -> Any:
    """Return a value of an annotation that is no default: one row of each column, a record in each place."""
    scalars: dict[Any, Any] = {int: 7, float: 7.5, str: "x", bytes: b"x", bool: True}
    if hint in scalars:
        return scalars[hint]
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint(**{name: some(of) for name, of in typing.get_type_hints(hint).items()})
    args = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return tuple(some(arg) for arg in args if arg is not Ellipsis)
    return some(args[0])


def lists(value: Any) -> Any:
    """Return a value as another version may have put it on the wire: every field of every record."""
    if dataclasses.is_dataclass(value):
        return [lists(getattr(value, field.name)) for field in dataclasses.fields(value)]
    return [lists(each) for each in value] if isinstance(value, tuple) else value


def records_in(value: Any, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], list[type[Any]]]]:
    """Yield the place of each record in a message, and its type behind those that it is in."""
    inner = value
    if dataclasses.is_dataclass(value):
        yield path, [type(value)]
        inner = tuple(getattr(value, field.name) for field in dataclasses.fields(value))
    if isinstance(inner, tuple):
        around = [type(value)] if dataclasses.is_dataclass(value) else []
        for place, each in enumerate(inner):
            for deeper, kinds in records_in(each, (*path, place)):
                yield deeper, around + kinds


def place_of(whole: list[Any], path: tuple[int, ...]) -> list[Any]:
    for step in path:
        whole = whole[step]
    return whole


def sent(cls: type[Any], fields: list[Any]) -> Any:
    return decode_list(wire(type=cls.__name__, fields=fields))


def last_defaults(record: type[Any]) -> int:
    """Count the fields at the end of a record that have a default."""
    has_default = [field.default is not dataclasses.MISSING for field in dataclasses.fields(record)]
    return len(list(takewhile(bool, reversed(has_default))))


def test_a_message_of_an_earlier_version_has_the_defaults_of_what_it_lacks() -> None:
    for cls in TYPES:
        message = some(cls)
        for path, kinds in records_in(message):
            for lacks in range(1, last_defaults(kinds[-1]) + 1):
                fields = lists(message)
                del place_of(fields, path)[-lacks:]
                again = lists(sent(cls, fields))
                for field in dataclasses.fields(kinds[-1])[-lacks:]:
                    place_of(fields, path).append(lists(field.default))
                assert again == fields, cls


def test_a_message_that_lacks_a_field_without_a_default_is_refused_by_its_name() -> None:
    for cls in TYPES:
        for path, kinds in records_in(some(cls)):
            left = len(dataclasses.fields(kinds[-1])) - last_defaults(kinds[-1]) - 1
            if left < 0:
                continue
            fields = lists(some(cls))
            del place_of(fields, path)[left:]
            with pytest.raises(ProtocolError, match=f"{kinds[-1].__name__} lacks its field"):
                sent(cls, fields)


def test_an_unknown_field_is_left_out_or_refused_where_it_decides_an_answer() -> None:
    for cls in TYPES:
        message = some(cls)
        for path, kinds in records_in(message):
            fields = lists(message)
            place_of(fields, path).append("from the future")
            if ASKS_THAT_DECIDE.isdisjoint(kinds):
                assert sent(cls, fields) == message, cls
            else:
                with pytest.raises(UnknownMessage, match=f"{kinds[-1].__name__} has .* fields"):
                    sent(cls, fields)


def test_what_is_behind_the_known_envelope_is_left_out() -> None:
    assert decode_list([*wire(), "from the future"]) == Accepted(7)


def test_fields_at_the_end_that_have_their_defaults_are_not_sent() -> None:
    for cls in TYPES:
        fields = dataclasses.fields(cls)
        bare = fields[: len(fields) - last_defaults(cls)]
        hints = typing.get_type_hints(cls)
        message = cls(**{field.name: some(hints[field.name]) for field in bare})
        head = msgpack.unpackb(codec.encode(message, Envelope()))
        assert len(head[8]) == len(bare), cls


def test_a_zero_below_zero_is_sent() -> None:
    message = messages.LookUpResponse(messages.ResponseKey("", b"", b""), True, min_similarity=-0.0)
    _, again = codec.decode(codec.encode(message, Envelope()))
    assert isinstance(again, messages.LookUpResponse)
    assert math.copysign(1, again.min_similarity) == -1


def test_a_column_that_an_older_sender_lacks_is_empty() -> None:
    @dataclasses.dataclass(frozen=True)
    class Rows:
        request_ids: tuple[str, ...]
        texts: tuple[str, ...]
        later: tuple[int, ...] = ()

    columns = codec._columns(Rows)
    codec._check_columns(Rows(("r",), ("x",)), columns)
    for ragged in (Rows(("r",), ()), Rows(("r",), ("x",), (1, 2))):
        with pytest.raises(ProtocolError, match="rows instead of 1"):
            codec._check_columns(ragged, columns)


def test_what_a_newer_version_says_beyond_is_told_once() -> None:
    codec._told_of_newer.clear()
    with structlog.testing.capture_logs() as told:
        for _ in range(3):
            decode_list(wire(fields=[7, "from the future"]))
    assert [(line["message"], line["fields"], line["known"]) for line in told] == [("Accepted", 2, 1)]


def test_another_meaning_is_refused_by_name_with_both_versions() -> None:
    with pytest.raises(UnknownMessage, match=f"Accepted has version 99 .* speaks version {MEANING_VERSION}"):
        decode_list(wire(version=99))
