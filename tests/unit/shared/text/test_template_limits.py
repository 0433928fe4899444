"""A chat template ends at its limits, in time, and says so; up to them it writes what it would."""

from __future__ import annotations

import pytest

from shared.errors import InvalidRequest
from shared.text.chat_template import ChatTemplate
from shared.text.template_limits import MAX_INTEGER_BITS, MAX_TEMPLATE_ITEMS, MAX_TEMPLATE_STEPS

LOOP = "{%% for x in messages %%}{%% for y in range(%d) %%}{%% endfor %%}{%% endfor %%}"
MESSAGE = {"role": "user", "content": "a"}


def rendered(source: str, messages: int = 1) -> str:
    return ChatTemplate(source, {}).render([MESSAGE] * messages)


def test_rounds_are_counted_over_all_loops_of_a_rendering() -> None:
    ten_rounds_around = 10 + 1  # and the call of `range` in each
    within = (MAX_TEMPLATE_STEPS - 2 * 10) // 10
    assert rendered(LOOP % within, 10) == ""
    with pytest.raises(InvalidRequest, match=f"more than {MAX_TEMPLATE_STEPS} rounds and calls"):
        rendered(LOOP % (within + 1), ten_rounds_around - 1)


def test_each_rendering_has_its_own_rounds() -> None:
    template = ChatTemplate(LOOP % (MAX_TEMPLATE_STEPS // 10 * 6 // 10), {})
    for _ in range(3):
        assert template.render([MESSAGE] * 10) == ""


@pytest.mark.parametrize(
    "source",
    [
        "{% for x in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{% endfor %}",
        "{% for x in messages if x.role == 'user' %}{{ loop.revindex }}{% else %}none{% endfor %}",
        "{% for k, v in messages[0].items() %}{{ k }}={{ v }}{% endfor %}",
        "{% for x in nothing %}a{% else %}b{% endfor %}",
    ],
)
def test_loops_know_what_they_knew(source: str) -> None:
    from jinja2 import Environment  # noqa: PLC0415 - the library's own, to compare with

    assert rendered(source, 3) == Environment().from_string(source).render(messages=[MESSAGE] * 3)


@pytest.mark.parametrize(
    "source",
    [
        f"{{{{ 'a' * {MAX_TEMPLATE_ITEMS + 1} }}}}",
        f"{{{{ ([1] * {MAX_TEMPLATE_ITEMS + 1}) | length }}}}",
        f"{{{{ {MAX_TEMPLATE_ITEMS + 1} * 'a' }}}}",
        f"{{{{ 'a'.ljust({MAX_TEMPLATE_ITEMS + 1}) }}}}",
        f"{{{{ 'a' | center({MAX_TEMPLATE_ITEMS + 1}) }}}}",
        f"{{{{ 'a\n' | indent({MAX_TEMPLATE_ITEMS}) }}}}",
        "{% set x = 'a' * 5000 %}{{ x.replace('a', x) }}",
        "{{ '%99999d' % 1 }}",
        "{{ '%*d' % (99999999, 1) }}",
        "{{ '{:99999}'.format(1) }}",
        f"{{{{ 2 ** {MAX_INTEGER_BITS} }}}}",
        "{% set ns = namespace(x=3) %}{% for y in range(40) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(30) }}",
    ],
)
def test_what_would_take_gigabytes_or_minutes_is_refused(source: str) -> None:
    with pytest.raises(InvalidRequest, match="the model's chat template refuses this conversation: it "):
        rendered(source)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (f"{{{{ ('a' * {MAX_TEMPLATE_ITEMS}) | length }}}}", str(MAX_TEMPLATE_ITEMS)),
        ("{{ '%04d' % 7 }}{{ '{:>3}'.format(1) }}", "0007  1"),
        ("{{ 'a' | center(3) }}{{ 'b\nc' | indent(2) }}", " a b\n  c"),
        ("{{ 2 ** 10 }}{{ 3 * 4 }}", "102412"),
        ("{{ 'a-b'.replace('-', '+') }}", "a+b"),
        (
            "{% macro f(context, called) %}{{ called }}{% endmacro %}{{ f(context=1, called=2) }}",
            "2",
        ),
    ],
)
def test_what_templates_do_is_done(source: str, text: str) -> None:
    assert rendered(source) == text


@pytest.mark.parametrize("source", ["{{" * 500, "{% macro f(a, a) %}{% endmacro %}", "{% endfor %}"])
def test_what_cannot_be_compiled_is_refused(source: str) -> None:
    with pytest.raises(InvalidRequest, match="chat template cannot be compiled"):
        ChatTemplate(source, {})
