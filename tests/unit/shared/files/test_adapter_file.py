"""The file of adapters: what it may say, and how it is changed."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from shared.errors import InvalidRequest, NotFound
from shared.files.adapter_file import (
    MAX_ADAPTER_FILE_BYTES,
    MAX_ADAPTER_NAME_CHARS,
    MAX_ADAPTER_TENANTS,
    MAX_ADAPTERS_LISTED,
    MAX_BASE_CHARS,
    MAX_DIRECTORY_CHARS,
    AdapterEntry,
    WantedAdapter,
    adapter_name_problem,
    parse_adapters,
    put_adapters,
    read_adapter_file,
    remove_adapter,
    split_adapter_tenants,
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "adapters.toml"


def entry(name: str = "sql", base: str = "m", directory: str = "/sql", version: object = 1) -> str:
    return f'[[adapter]]\nbase = "{base}"\nname = "{name}"\ndirectory = "{directory}"\nversion = {version}\n'


def test_a_file_that_is_not_there_yet_has_no_adapters(file: Path) -> None:
    assert read_adapter_file(file) == ()


def test_one_that_must_be_there_is_missed(file: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"adapters\.toml cannot be read \(No such file"):
        read_adapter_file(file, may_be_missing=False)


def test_what_was_put_is_read_again_whatever_its_texts_hold(file: Path) -> None:
    wanted = [
        WantedAdapter("org/m", "sql", '/a "quoted" \\ folder/ü🙂', ("acme", "rival-2")),
        WantedAdapter("m:8b", "Chat-1.0_x", "/chat", ()),
    ]
    put = put_adapters(file, wanted)
    assert read_adapter_file(file) == put
    assert [(each.base, each.name, each.directory, each.tenants) for each in put] == wanted


def test_a_directory_that_is_relative_counts_from_the_file(file: Path) -> None:
    (read,) = parse_adapters(entry(directory="adapters/sql"), file)
    assert read.directory == str(file.parent / "adapters" / "sql")


def test_putting_an_adapter_again_takes_its_place_under_a_later_version(file: Path) -> None:
    (first, other) = put_adapters(
        file, [WantedAdapter("m", "sql", "/sql"), WantedAdapter("m", "chat", "/chat")]
    )
    (again,) = put_adapters(file, [WantedAdapter("m", "sql", "/sql")])
    assert read_adapter_file(file) == (again, other)
    assert again.version > first.version


def test_an_adapter_that_is_put_again_is_for_no_others_than_before_unless_that_is_said(file: Path) -> None:
    put_adapters(file, [WantedAdapter("m", "sql", "/sql", ("acme",))])
    (again,) = put_adapters(file, [WantedAdapter("m", "sql", "/newer")])
    assert (again.directory, again.tenants) == ("/newer", ("acme",))
    (others,) = put_adapters(file, [WantedAdapter("m", "sql", "/newer", ("rival", "third"))])
    assert read_adapter_file(file) == (others,)
    assert others.tenants == ("rival", "third")


MANY = tuple(f"t{number}" for number in range(MAX_ADAPTER_TENANTS + 1))


@pytest.mark.parametrize(
    ("text", "name", "tenants"),
    [
        ("sql", "sql", None),
        ("sql@acme", "sql", ("acme",)),
        ("sql@acme+rival-2", "sql", ("acme", "rival-2")),
        ("sql@" + "+".join(MANY[:-1]), "sql", MANY[:-1]),
    ],
)
def test_tenants_stand_behind_the_name_of_an_adapter(
    text: str, name: str, tenants: tuple[str, ...] | None
) -> None:
    assert split_adapter_tenants(text) == (name, tenants)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a b@acme", "'a b' is no name"),
        ("sql@", "'' is no tenant's name"),
        ("sql@Acme", "'Acme' is no tenant's name"),
        ("sql@acme+", "'' is no tenant's name"),
        ("sql@" + "+".join(MANY), f"an adapter has at most {MAX_ADAPTER_TENANTS} tenants, not {len(MANY)}"),
    ],
)
def test_what_is_no_name_with_tenants_is_said_to_be_none(text: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        split_adapter_tenants(text)


def test_the_same_name_over_two_models_is_two_adapters(file: Path) -> None:
    put_adapters(file, [WantedAdapter("m", "sql", "/a"), WantedAdapter("n", "sql", "/b")])
    remove_adapter(file, "m", "sql")
    assert [(each.base, each.directory) for each in read_adapter_file(file)] == [("n", "/b")]


def test_what_is_not_there_cannot_be_removed_and_what_is_is_named(file: Path) -> None:
    with pytest.raises(NotFound, match="has no m:sql: there is nothing"):
        remove_adapter(file, "m", "sql")
    put_adapters(file, [WantedAdapter("m", "chat", "/chat")])
    with pytest.raises(NotFound, match="has no m:sql: there is m:chat"):
        remove_adapter(file, "m", "sql")


def test_services_of_other_users_may_read_it(file: Path) -> None:
    put_adapters(file, [WantedAdapter("m", "sql", "/sql")])
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


def test_a_change_that_cannot_be_leaves_the_file_as_it_was(file: Path) -> None:
    put_adapters(file, [WantedAdapter("m", "sql", "/sql")])
    before = file.read_bytes()
    with pytest.raises(InvalidRequest, match="is no name for an adapter"):
        put_adapters(file, [WantedAdapter("m", "a b", "/sql")])
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("name", ["", "-sql", "a b", "a/b", "a:b", "ü", "x" * (MAX_ADAPTER_NAME_CHARS + 1)])
def test_what_is_no_name_is_said_to_be_none(name: str) -> None:
    assert "is no name for an adapter: take 1 to" in adapter_name_problem(name)


@pytest.mark.parametrize("name", ["a", "SQL", "0.1-b_c", "x" * MAX_ADAPTER_NAME_CHARS])
def test_a_name_is_one(name: str) -> None:
    assert adapter_name_problem(name) == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[[adapter", "is not TOML"),
        ("x = 1", "has x: write nothing but"),
        ("adapter = 1", "adapter is no list of tables"),
        (entry() + 'key = "x"\n', "adapter 1 has key: it may have base, name, directory, version"),
        (entry() + entry(), "adapter 2 is a second m:sql"),
        (entry(name="a b"), "adapter 1: 'a b' is no name"),
        ('[[adapter]]\nname = "sql"\ndirectory = "/sql"\n', "adapter 1 needs a base"),
        (entry(base="x" * (MAX_BASE_CHARS + 1)), f"needs a base: write a text of 1 to {MAX_BASE_CHARS}"),
        (entry(directory="x" * (MAX_DIRECTORY_CHARS + 1)), "needs a directory"),
        (entry(version='"1"'), "has a wrong version"),
        (entry(version=-1), "has a wrong version"),
        (entry(version="true"), "has a wrong version"),
        (entry(version=1 << 63), "has a wrong version"),
        (entry() + 'tenants = "acme"\n', "adapter 1 has wrong tenants: write a list of names"),
        (entry() + "tenants = []\n", "adapter 1 has wrong tenants: write a list of names"),
        (entry() + "tenants = [1]\n", "adapter 1: '1' is no tenant's name"),
        (entry() + 'tenants = ["a b"]\n', "adapter 1: 'a b' is no tenant's name"),
        (entry() + f"tenants = {[*MANY]}\n", f"adapter 1: an adapter has at most {MAX_ADAPTER_TENANTS}"),
    ],
)
def test_what_a_file_may_not_say_is_named(file: Path, text: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        parse_adapters(text, file)


def test_a_file_lists_so_many_adapters_and_no_more(file: Path) -> None:
    entries = [entry(name=f"a{number}") for number in range(MAX_ADAPTERS_LISTED + 1)]
    assert len(parse_adapters("".join(entries[:-1]), file)) == MAX_ADAPTERS_LISTED
    with pytest.raises(InvalidRequest, match=f"at most {MAX_ADAPTERS_LISTED} are allowed"):
        parse_adapters("".join(entries), file)


def test_a_file_has_so_many_bytes_and_no_more(file: Path) -> None:
    text = entry()
    file.write_text(text + "#" * (MAX_ADAPTER_FILE_BYTES - len(text)))
    assert read_adapter_file(file) == (AdapterEntry("m", "sql", "/sql", 1),)
    file.write_text(text + "#" * (MAX_ADAPTER_FILE_BYTES - len(text) + 1))
    with pytest.raises(InvalidRequest, match="is larger than"):
        read_adapter_file(file)


def test_what_is_no_text_is_said_to_be_none(file: Path) -> None:
    file.write_bytes(b"\xff")
    with pytest.raises(InvalidRequest, match="is not UTF-8 text"):
        read_adapter_file(file)
