"""A file of virtual models is taken as it says, or refused with a sentence that names the place."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.errors import InvalidRequest
from shared.files.virtual_model import Cascade, ModelShare, RuleConditions, TtftBound
from shared.files.virtual_model_file import (
    MAX_FALLBACKS,
    MAX_FILE_BYTES,
    MAX_RULES,
    MAX_SHARES,
    MAX_VIRTUAL_MODELS,
    load_virtual_models,
    parse_virtual_models,
)

SOURCE = Path("/etc/models.toml")
WHOLE = """
[auto]
fallback = ["large", "small"]
max_ttft_ms = 800
classifier = "hard.safetensors"

[[auto.rules]]
name = "paying"
tenants = ["acme"]
min_tokens = 2000
max_weight = 4
priorities = ["high"]
formats = ["json_schema"]
languages = ["de"]
tools = true
max_left_ms = 500
ttft_above = { small = 300 }
hard_above = 0.6
to = "large"
fallback = []

[[auto.rules]]
to = { small = 95, small-next = 5 }
cascade = { to = "huge", min_logprob = -0.7 }
"""


def test_all_that_a_file_may_say_is_read() -> None:
    (auto,) = parse_virtual_models(WHOLE, SOURCE)
    paying, rest = auto.rules
    assert (auto.name, auto.fallback, auto.max_ttft_ms) == ("auto", ("large", "small"), 800.0)
    assert auto.classifier == "/etc/hard.safetensors"
    assert paying.conditions == RuleConditions(
        min_tokens=2000,
        max_weight=4,
        max_left_ms=500,
        tenants=("acme",),
        priorities=("high",),
        formats=("json_schema",),
        languages=("de",),
        tools=True,
        ttft_above=(TtftBound("small", 300.0),),
        hard_above=0.6,
    )
    assert (paying.name, rest.name) == ("paying", "2")
    assert rest.to == (ModelShare("small", 95.0), ModelShare("small-next", 5.0))
    assert (auto.fallback_of(paying), auto.fallback_of(rest)) == ((), ("large", "small"))
    assert (paying.cascade, rest.cascade) == (None, Cascade("huge", -0.7))
    assert auto.targets == ("large", "small", "small-next", "huge")


LAST = '[[auto.rules]]\nto = "small"\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has 0 virtual names"),
        ("[auto", "are not TOML"),
        ("[AUTO]\n", "a virtual name is"),
        ("auto = 3", "auto is no table"),
        ("[auto]\n", "has no rules"),
        ("[auto]\nrules = []\n", "has 0 rules"),
        ("[auto]\nfall = 1\n" + LAST, "has 'fall': it may have"),
        (LAST + "colour = 3\n", "rule 1 has 'colour'"),
        ('[[auto.rules]]\nto = "small"\ntools = true\n', "has conditions in its last rule"),
        (LAST + LAST, "rule 1 has no conditions"),
        ('[[auto.rules]]\nto = "a"\nhard_above = 0.5\n' + LAST, "set classifier to a file"),
        ("[[auto.rules]]\n", "has no right `to`"),
        ("[[auto.rules]]\nto = { small = -1 }\n", "wrong share of small"),
        ("[[auto.rules]]\nto = { small = 0 }\n", "has no share above 0"),
        ("[[auto.rules]]\nto = { small = nan }\n", "wrong share of small"),
        ('[[auto.rules]]\nto = ""\n', "wrong model in to"),
        ('[[auto.rules]]\nto = "a"\nlanguages = ["xx"]\n' + LAST, "wrong value in languages"),
        ('[[auto.rules]]\nto = "a"\nmin_chars = -1\n' + LAST, "wrong min_chars"),
        ('[[auto.rules]]\nto = "a"\nhard_above = 2\n' + LAST, "wrong hard_above"),
        ('[[auto.rules]]\nto = "a"\ntools = 1\n' + LAST, "wrong tools"),
        ('[[auto.rules]]\nto = "a"\nttft_below = 3\n' + LAST, "wrong ttft_below"),
        ('[[auto.rules]]\nname = "x"\ntools = true\nto = "a"\n' * 2 + LAST, "two rules called x"),
        (LAST + 'cascade = "large"\n', "wrong cascade"),
        (LAST + 'cascade = { to = "large", min_logprob = 0.1 }\n', "wrong min_logprob"),
        (LAST + 'cascade = { to = "", min_logprob = -1 }\n', "wrong model in cascade"),
        ('[auto]\nfallback = "small"\n' + LAST, "wrong fallback"),
        ('[auto]\nclassifier = ""\n' + LAST, "wrong classifier"),
        ('[[auto.rules]]\nto = "other"\n[[other.rules]]\nto = "small"\n', "which is a virtual name too"),
    ],
)
def test_what_cannot_be_used_is_said(text: str, sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=r"/etc/models\.toml") as refused:
        parse_virtual_models(text, SOURCE)
    assert sentence in str(refused.value)


def rule(number: int) -> str:
    return f'[[auto.rules]]\nname = "r{number}"\nmin_chars = 1\nto = "small"\n'


def shares(count: int) -> str:
    return f"[[auto.rules]]\nto = {{ {', '.join(f'm{n} = 1' for n in range(count))} }}\n"


@pytest.mark.parametrize(
    ("most", "text_of"),
    [
        (MAX_RULES, lambda n: "".join(map(rule, range(n - 1))) + LAST),
        (MAX_SHARES, shares),
        (MAX_FALLBACKS, lambda n: f"[auto]\nfallback = {[f'm{i}' for i in range(n)]}\n{LAST}"),
        (MAX_VIRTUAL_MODELS, lambda n: "".join(f'[[v{i}.rules]]\nto = "small"\n' for i in range(n))),
    ],
)
def test_as_many_as_are_allowed_are_taken_and_no_more(most, text_of) -> None:  # type: ignore[no-untyped-def]
    parse_virtual_models(text_of(most), SOURCE)
    with pytest.raises(InvalidRequest):
        parse_virtual_models(text_of(most + 1), SOURCE)


def test_a_file_that_is_not_there_too_long_or_no_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    with pytest.raises(InvalidRequest, match="cannot be read"):
        load_virtual_models(file)
    file.write_bytes(LAST.encode() + b"#" * (MAX_FILE_BYTES - len(LAST)))
    assert load_virtual_models(file)[0].name == "auto"
    file.write_bytes(file.read_bytes() + b"#")
    with pytest.raises(InvalidRequest, match="larger than"):
        load_virtual_models(file)
    file.write_bytes(b"\xff")
    with pytest.raises(InvalidRequest, match="UTF-8"):
        load_virtual_models(file)
