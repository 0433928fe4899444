"""How corpora are said, and what is wrong with those that are said otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.config.named_corpus import (
    MAX_CORPORA,
    MAX_CORPUS_TENANTS,
    NamedCorpus,
    read_named_corpora,
    split_corpus,
)
from shared.errors import InvalidRequest


@pytest.mark.parametrize(
    ("text", "corpus"),
    [
        ("/srv/handbook", NamedCorpus("default", "/srv/handbook")),
        ("Hand.book_1-a=/srv", NamedCorpus("Hand.book_1-a", "/srv")),
        ("prices@acme+rival=/srv", NamedCorpus("prices", "/srv", ("acme", "rival"))),
        ("/srv/a=b", NamedCorpus("default", "/srv/a=b")),
        ("a=/srv/b=c", NamedCorpus("a", "/srv/b=c")),
        ("/srv/*.md", NamedCorpus("default", "/srv/*.md")),
        (f"{'x' * 64}=/srv", NamedCorpus("x" * 64, "/srv")),
        (f"a@{'t' * 63}=/srv", NamedCorpus("a", "/srv", ("t" * 63,))),
    ],
)
def test_a_corpus_has_a_path_and_as_it_is_said_a_name_and_tenants(text: str, corpus: NamedCorpus) -> None:
    assert read_named_corpora([text]) == (corpus,)


def test_a_relative_path_and_that_of_a_home_are_made_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.chdir(tmp_path)
    assert [corpus.path for corpus in read_named_corpora(["a=docs", "b=~/docs", "./c=d"])] == [
        str(tmp_path / "docs"),
        "/home/me/docs",
        str(tmp_path / "c=d"),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "it has no path"),
        ("a=", "it has no path"),
        ("=/srv", "a name is 1 to 64 letters"),
        ("-a=/srv", "a name is 1 to 64 letters"),
        ("a/b=/srv", "a name is 1 to 64 letters"),
        (f"{'x' * 65}=/srv", "a name is 1 to 64 letters"),
        ("a@=/srv", "'' is no tenant's name"),
        ("a@b+=/srv", "'' is no tenant's name"),
        ("a@Acme=/srv", "'Acme' is no tenant's name"),
        (f"a@{'t' * 64}=/srv", "is no tenant's name"),
        ("@acme=/srv", "a name is 1 to 64 letters"),
        (f"a@{'+'.join(['t'] * (MAX_CORPUS_TENANTS + 1))}=/srv", f"{MAX_CORPUS_TENANTS + 1} tenants"),
    ],
)
def test_what_is_no_corpus_is_named_with_what_it_may_be(text: str, problem: str) -> None:
    with pytest.raises(InvalidRequest, match=problem) as caught:
        read_named_corpora([text])
    assert repr(text) in caught.value.message


def test_two_corpora_of_one_name_are_refused() -> None:
    with pytest.raises(
        InvalidRequest, match="two corpora have the name 'default', /a and /b: write NAME=PATH"
    ):
        read_named_corpora(["/a", "/b"])


def test_there_are_as_many_corpora_and_tenants_as_the_limits_say() -> None:
    tenants = "+".join(["t"] * MAX_CORPUS_TENANTS)
    texts = [f"c{number}@{tenants}=/srv" for number in range(MAX_CORPORA)]
    assert len(read_named_corpora(texts)) == MAX_CORPORA
    with pytest.raises(InvalidRequest, match=f"at most {MAX_CORPORA}"):
        read_named_corpora([*texts, "more=/srv"])


@pytest.mark.parametrize(
    ("text", "parts"),
    [("a@b=c=d", ("a@b=", "c=d")), ("/a=b", ("", "/a=b")), ("a", ("", "a")), ("~a=b", ("", "~a=b"))],
)
def test_a_path_stands_behind_the_first_equals_sign_of_a_name(text: str, parts: tuple[str, str]) -> None:
    assert split_corpus(text) == parts
