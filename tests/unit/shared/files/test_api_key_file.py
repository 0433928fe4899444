"""The file of API keys: what it may hold, and the sentences for what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.errors import InvalidRequest
from shared.files.api_key_file import (
    HIGHEST,
    LIMITS,
    MAX_FILE_BYTES,
    MAX_KEYS,
    ApiKey,
    KeyLimits,
    describe_api_key,
    hash_api_key,
    new_api_key,
    parse_api_keys,
    read_key_file,
)

FILE = Path("keys.toml")
WEB = ApiKey("web", "acme", hash_api_key("1"), KeyLimits(60, 2, 1000))
APP = ApiKey("app", "acme", hash_api_key("2"))
BOT = ApiKey("bot", "acme", hash_api_key("3"), cache="semantic", operator=True)
GOLD = ApiKey("gold", "acme", hash_api_key("4"), weight=7)


def entry(**changes: str) -> str:
    lines = {"name": '"web"', "tenant": '"acme"', "hash": f'"{WEB.hash}"', **changes}
    return "[[key]]\n" + "".join(f"{name} = {value}\n" for name, value in lines.items() if value)


def refusal(text: str) -> str:
    with pytest.raises(InvalidRequest) as caught:
        parse_api_keys(text, FILE)
    return str(caught.value)


def test_what_is_described_is_what_is_parsed() -> None:
    keys = (WEB, APP, BOT, GOLD)
    assert parse_api_keys("\n".join(map(describe_api_key, keys)), FILE) == keys


def test_keys_are_long_random_and_of_a_form_that_scanners_can_find() -> None:
    made = {new_api_key() for _ in range(100)}
    assert len(made) == 100
    assert all(key.startswith("psk_") and len(key) >= 47 for key in made)


def test_a_tenant_may_have_several_keys() -> None:
    assert [key.tenant for key in parse_api_keys(describe_api_key(WEB) + describe_api_key(APP), FILE)] == [
        "acme",
        "acme",
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": ""}, "key 2 (line 6) has no name: it must be 1 to 63 of a-z"),
        ({"name": '"Web"'}, "key 2 (line 6) has a wrong name"),
        ({"name": "7"}, "has a wrong name"),
        ({"name": f'"{"x" * 64}"'}, "has a wrong name"),
        ({"tenant": ""}, "has no tenant"),
        ({"tenant": '""'}, "has a wrong tenant"),
        ({"hash": ""}, "has no hash: it must be sha256: and 64 hex digits"),
        ({"hash": '"sha256:00"'}, "has a wrong hash"),
        (
            {"requests_per_min": "0"},
            "wrong requests_per_min: it must be a whole number from 1 to 1000000",
        ),
        ({"concurrency": "true"}, "has a wrong concurrency"),
        ({"tokens_per_min": "1.5"}, "has a wrong tokens_per_min"),
        ({"cache": '"near"'}, "has a wrong cache: it must be one of off, exact, semantic; without it"),
        ({"cache": "true"}, "has a wrong cache"),
        ({"operator": '"yes"'}, "has a wrong operator: it must be true or false"),
        ({"operator": "1"}, "has a wrong operator"),
        ({"cache": '""'}, "has a wrong cache"),
        ({"weight": "0"}, "has a wrong weight: it must be a whole number from 1 to 1000; without it"),
        ({"weight": "1001"}, "has a wrong weight"),
        ({"weight": "true"}, "has a wrong weight"),
        ({"weight": "1.5"}, "has a wrong weight"),
        ({"rate": "5"}, "has rate: it may have name, tenant, hash, requests_per_min"),
    ],
)
def test_a_wrong_entry_is_refused_with_its_number_its_line_and_what_is_allowed(
    changes: dict[str, str], words: str
) -> None:
    assert words in refusal(describe_api_key(APP) + "\n" + entry(**changes))


@pytest.mark.parametrize("limit", LIMITS)
def test_a_limit_may_be_as_high_as_it_says_and_no_higher(limit: str) -> None:
    highest: int = getattr(HIGHEST, limit)
    (key,) = parse_api_keys(entry(**{limit: str(highest)}), FILE)
    assert getattr(key.limits, limit) == highest
    assert f"has a wrong {limit}" in refusal(entry(**{limit: str(highest + 1)}))


def test_two_entries_with_one_name_are_refused_with_both_places() -> None:
    other = hash_api_key("3")
    assert "key 2 (line 6) has the name of key 1 (line 1)" in refusal(
        entry() + "\n" + entry(hash=f'"{other}"')
    )


def test_two_entries_with_one_hash_are_refused_with_both_places() -> None:
    text = entry() + "\n" + entry(name='"other"', tenant='"rival"')
    assert "key 2 (line 6) has the hash of key 1 (line 1): make a key for each" in refusal(text)


def test_a_key_in_the_place_of_its_hash_is_refused_without_being_shown() -> None:
    key = new_api_key()
    for text in (entry(hash=f'"{key}"'), entry(key=f'"{key}"'), entry(**{f'"{key}"': "1"}), f'"{key}" = 1'):
        assert key not in refusal(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[key]\n", "are not TOML"),
        ("a = " + "[" * 5000, "are not TOML"),
        ("[other]\nname = 1\n", "has other: write nothing but [[key]] entries"),
        ("key = 5\n", "key is no list of tables"),
        ("[key]\nname = 'x'\n", "key is no list of tables"),
        ("key = [1]\n", "key is no list of tables"),
    ],
)
def test_what_is_no_file_of_keys_is_a_sentence(text: str, words: str) -> None:
    sentence = refusal(text)
    assert words in sentence
    assert "keys.toml" in sentence


def test_so_many_keys_are_allowed_and_no_more() -> None:
    entries = [f'[[key]]\nname="n{i}"\ntenant="t"\nhash="sha256:{i:064x}"\n' for i in range(MAX_KEYS + 1)]
    assert len(parse_api_keys("".join(entries[:-1]), FILE)) == MAX_KEYS
    assert f"at most {MAX_KEYS}" in refusal("".join(entries))


def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    missing, binary, huge = tmp_path / "missing", tmp_path / "binary", tmp_path / "huge"
    binary.write_bytes(b"\xff")
    huge.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    for file, words in ((missing, "penstock keys new"), (binary, "not UTF-8"), (huge, "larger than")):
        with pytest.raises(InvalidRequest, match=words):
            read_key_file(file)
    huge.write_bytes(b"#" * MAX_FILE_BYTES)
    assert len(read_key_file(huge)) == MAX_FILE_BYTES
