"""Profiles that are read, and those that are refused with the field that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from services.cli.capacity.profile_file import (
    FIELDS,
    MAX_NAME_CHARS,
    MAX_PROFILE_BYTES,
    MAX_SLOTS,
    MAX_STEP_POINTS,
    MAX_TIME_MS,
    ProfileField,
    read_profile,
)
from shared.errors import InvalidRequest
from tests.unit.services.cli.capacity.deployments import PROFILE, document, profile_file

TOML = """\
name = "test"
[host]
cores = 2
[gateway]
cpu_ms = 3.0
token_cpu_ms = 0.1
overhead_ms = 2.0
[prefill]
tokens_per_s = 1500
overhead_ms = 4
[decode]
step_ms = [[1, 12.0], [8, 20.0], [16, 30]]
slots = 16
kv_blocks = 4096
transfer_ms = 3
[restart]
ready_s = 12
[int8]
tokens_per_s = 2500
step_ms = [[1, 7.0], [16, 22.0]]
"""


def refused(folder: Path, text: str) -> str:
    with pytest.raises(InvalidRequest) as error:
        read_profile(profile_file(folder, text))
    return str(error.value)


def changed(table: str, name: str, value: Any) -> str:
    tables = document()
    tables[table][name] = value
    return json.dumps(tables)


def test_toml_and_json_say_the_same(tmp_path: Path) -> None:
    toml = tmp_path / "profile.toml"
    toml.write_text(TOML)
    assert read_profile(toml) == read_profile(profile_file(tmp_path)) == PROFILE


@pytest.mark.parametrize("field", FIELDS, ids=lambda field: field.path)
def test_each_field_is_taken_at_its_edges_and_named_beyond(tmp_path: Path, field: ProfileField) -> None:
    def said(value: object) -> str:
        try:
            read_profile(profile_file(tmp_path, changed(field.table, field.name, value)))
        except InvalidRequest as error:
            return str(error)
        return ""

    least, most = (int(edge) if field.whole else edge for edge in (field.least, field.most))
    for edge in (least, most):
        assert f"{field.path} is {edge}; it is a" not in said(edge)
    wrongs: list[object] = [least - 1, most + 1, True, "1", []]
    for wrong in wrongs:
        assert field.path in said(wrong)
        assert field.rule in said(wrong)


def test_a_number_that_is_none_is_named(tmp_path: Path) -> None:
    for word in ("NaN", "Infinity", "-Infinity", "1e999"):
        text = json.dumps(document()).replace('"cpu_ms": 3.0', f'"cpu_ms": {word}')
        assert "gateway.cpu_ms is" in refused(tmp_path, text)


def test_a_whole_number_too_long_to_print_is_named(tmp_path: Path) -> None:
    path = tmp_path / "profile.toml"
    path.write_text(TOML.replace("slots = 16", f"slots = 0x{'f' * 20_000}"))
    with pytest.raises(InvalidRequest, match=r"decode\.slots is a number of more digits"):
        read_profile(path)


@pytest.mark.parametrize(
    ("points", "says"),
    [
        ([], "no list of 1 to"),
        ("flat", "no list of 1 to"),
        ([[1, 1.0]] * (MAX_STEP_POINTS + 1), f"no list of 1 to {MAX_STEP_POINTS}"),
        ([[0, 1.0]], f"a point is [sequences from 1 to {MAX_SLOTS}"),
        ([[MAX_SLOTS + 1, 1.0]], f"a point is [sequences from 1 to {MAX_SLOTS}"),
        ([[1, 0]], "ms above 0"),
        ([[1, MAX_TIME_MS + 1]], "ms above 0"),
        ([[True, 1.0]], "decode.step_ms has [True, 1.0]"),
        ([[1, 2.0, 3.0]], "decode.step_ms has [1, 2.0, 3.0]"),
        ([1], "decode.step_ms has 1"),
        ([[2, 1.0], [1, 2.0]], "sequences rise"),
        ([[1, 2.0], [1, 2.0]], "sequences rise"),
        ([[1, 2.0], [2, 1.0]], "ms do not fall"),
    ],
)
def test_a_curve_that_is_none_is_named(tmp_path: Path, points: Any, says: str) -> None:
    said = refused(tmp_path, changed("decode", "step_ms", points))
    assert "decode.step_ms" in said
    assert says in said


def test_a_curve_may_have_the_most_points_and_slots(tmp_path: Path) -> None:
    points = [[MAX_SLOTS - MAX_STEP_POINTS + place, MAX_TIME_MS] for place in range(1, MAX_STEP_POINTS + 1)]
    curve = read_profile(profile_file(tmp_path, changed("decode", "step_ms", points))).decode.step_ms
    assert curve.largest_batch == MAX_SLOTS


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "is no JSON object"),
        ("{", "is no JSON ("),
        ("[" * 100_000, "larger than"),
        ("[" * 60_000, "is no JSON ("),
        ('{"hosts": {}}', "no table 'hosts'"),
        ('{"host": 3}', "host is no table"),
        ('{"host": {"core": 3}}', "no field host.'core'"),
        ('{"host": {}}', "lacks host.cores"),
        ('{"\\ud800": {}}', "no table '\\ud800'"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, text: str, says: str) -> None:
    assert says in refused(tmp_path, text)


def test_a_file_is_bounded_to_the_byte(tmp_path: Path) -> None:
    whole = json.dumps(document())
    assert read_profile(profile_file(tmp_path, whole.ljust(MAX_PROFILE_BYTES))) == PROFILE
    assert "larger than" in refused(tmp_path, whole.ljust(MAX_PROFILE_BYTES + 1))


def test_bytes_that_are_no_text_and_a_file_that_is_not_there_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "profile.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidRequest, match="is no TOML"):
        read_profile(path)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_profile(tmp_path / "none.toml")


@pytest.mark.parametrize("name", ["", "x" * (MAX_NAME_CHARS + 1), "\x1b[2J", 3, "two\nlines"])
def test_a_name_is_a_line(tmp_path: Path, name: Any) -> None:
    assert "name is no line" in refused(tmp_path, json.dumps({**document(), "name": name}))


def test_instances_fit_on_a_host(tmp_path: Path) -> None:
    assert "decode.cores is 3 and host.cores 2" in refused(tmp_path, changed("decode", "cores", 3))
    assert "prefill.gpus is 1 and host.gpus 0" in refused(tmp_path, changed("prefill", "gpus", 1))
