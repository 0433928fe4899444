"""Relations: what pages say about a subject in several wordings, and how people ask for it in others."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from shared.demo.invent import Inventor
from shared.demo.lessons.yes_no import asked_whether, denied, granted

Slot = str | tuple[str, ...]
"""The filling of a place of a template: a drawer's name, or choices; forms of one choice stand apart by /."""


@dataclass(frozen=True, slots=True)
class Relation:
    """`says` and `asks` are templates with the places {e} (the subject) and those of `slots`.

    `backwards` are questions whose answer is the subject. A place whose choices have several forms is
    written {x[0]}, {x[1]}.
    """

    says: tuple[str, ...]
    asks: tuple[str, ...]
    slots: Mapping[str, Slot] = field(default_factory=dict)
    answer: str = "{v}"
    backwards: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ToldFact:
    """A sentence with the questions it answers: (question, answer). `claims` are those for yes or no: as many
    that the sentence grants as that it denies."""

    sentence: str
    questions: tuple[tuple[str, str], ...]
    claims: tuple[tuple[str, str], ...] = ()


def tell(inventor: Inventor, relation: Relation, subject: str) -> ToldFact:
    """The relation of `subject` with drawn values."""
    values: dict[str, str | list[str]] = {"e": subject}
    for name, slot in relation.slots.items():
        values[name] = _drawn(inventor, slot)
    sentence = raised(inventor.random.choice(relation.says).format_map(values))
    answer = relation.answer.format_map(values)
    questions = [(ask.format_map(values), answer) for ask in relation.asks]
    questions += [(ask.format_map(values), subject) for ask in relation.backwards]
    asked = tuple((raised(question), answer) for question, answer in questions)
    return ToldFact(sentence, asked, tuple(_claims(inventor, relation, values, answer)))


def _claims(
    inventor: Inventor, relation: Relation, values: Mapping[str, str | list[str]], answer: str
) -> Iterator[tuple[str, str]]:
    """Questions whether what is told is so, and whether another value is."""
    asked_for = re.findall(r"{(\w)", relation.answer)
    places = ["{" + name for name in asked_for]
    if not asked_for or any(name not in relation.slots for name in asked_for):
        return
    others = {**values, **{name: _drawn(inventor, relation.slots[name]) for name in asked_for}}
    differs = relation.answer.format_map(others) != answer
    for whether in asked_whether(relation.says, [(ask, relation.answer) for ask in relation.asks]):
        if all(place in whether for place in places):
            yield raised(whether.format_map(values)), granted(answer)
            if differs:
                yield raised(whether.format_map(others)), denied(answer)


def raised(sentence: str) -> str:
    """`sentence` with a capital first letter, unless it begins with code."""
    return sentence if not sentence or sentence[0] in "`-/" else sentence[0].upper() + sentence[1:]


def _drawn(inventor: Inventor, slot: Slot) -> str | list[str]:
    if isinstance(slot, str):
        return DRAWERS[slot](inventor)
    choice = inventor.random.choice(slot)
    return choice.split("/") if "/" in choice else choice


def _pick(inventor: Inventor, words: str) -> str:
    return inventor.random.choice(words.split())


def _count(inventor: Inventor) -> str:
    words = "two three four five six seven eight nine ten twelve twenty"
    if inventor.chance(0.15):
        return _pick(inventor, words)
    if inventor.chance(0.5):
        return str(inventor.random.randint(2, 60))
    return _pick(
        inventor, "8 16 24 32 48 64 96 100 120 128 150 200 256 300 400 500 512 600 750 1000 1024 2048"
    )


def _span(inventor: Inventor) -> str:
    """A time in seconds, minutes or days."""
    unit = _pick(inventor, "seconds seconds minutes minutes hours days weeks")
    return f"{inventor.random.choice((2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 30, 45, 60, 90, 120))} {unit}"


def _moment(inventor: Inventor) -> str:
    """A time in milliseconds or seconds."""
    if inventor.chance(0.3):
        return f"{inventor.random.randint(2, 30)} seconds"
    return f"{inventor.random.choice((5, 10, 20, 25, 40, 50, 75, 100, 150, 200, 300, 400, 500, 750, 800))} ms"


def _bytes(inventor: Inventor) -> str:
    return f"{inventor.random.choice((1, 2, 4, 8, 10, 16, 32, 50, 64, 100, 128, 200, 500))} " + _pick(
        inventor, "KB KB MB MB MB GB GB TB"
    )


def _percent(inventor: Inventor) -> str:
    sign = "%" if inventor.chance(0.5) else " percent"
    return f"{inventor.random.randint(1, 19) * 5}{sign}"


def _money(inventor: Inventor) -> str:
    amount = inventor.random.choice(
        (5, 9, 12, 15, 20, 25, 40, 60, 75, 80, 120, 150, 240, 300, 450, 900, 1500)
    )
    return f"{amount} " + _pick(inventor, "euros dollars pounds crowns francs")


def _year(inventor: Inventor) -> str:
    return str(inventor.random.randint(1150, 2019))


def _date(inventor: Inventor) -> str:
    months = "January February March April May June July August September October November December"
    return f"{inventor.random.randint(1, 28)} {_pick(inventor, months)}"


def _clock(inventor: Inventor) -> str:
    return f"{inventor.random.randint(6, 21)}:{_pick(inventor, '00 15 30 45')}"


def _code(inventor: Inventor) -> str:
    return inventor.identifier()


def _command(inventor: Inventor) -> str:
    program = inventor.name().lower()
    verb = _pick(
        inventor, "check build export import sync reset list scan repair init pack verify prune load status"
    )
    form = inventor.random.choice(("{p} {v}", "`{p} {v}`", "`{p} {v} --{n}`", "`make {v}`", "`{p}-{v}`"))
    return form.format(p=program, v=verb, n=inventor.noun())


def _file(inventor: Inventor) -> str:
    name = inventor.noun()
    form = inventor.random.choice(
        ("{n}.toml", "`{n}.yaml`", "/etc/{n}.conf", "{n}.json", "`{n}.lock`", "/var/{n}")
    )
    return form.format(n=name)


def _product(inventor: Inventor) -> str:
    """A library, a model, an algorithm: a name with a version or a number."""
    name = inventor.name()
    form = inventor.random.choice(
        (
            "{n}",
            "{n}",
            "{l}",
            "{n}-{d}",
            "{u}{d}",
            "lib{l}",
            "{n}DB",
            "{l}-{n}-v{d}",
            "open-{n}-L{d}-v2",
            "{u}-{l}-{d}b",
            "all-{n}{u}-{d}",
        )
    )
    return form.format(n=name, l=name.lower(), u=name.upper(), d=inventor.random.randint(2, 64))


def _measure(inventor: Inventor) -> str:
    number = inventor.random.choice(
        ("1.5", "2.4", "3", "4.8", "6", "7.5", "12", "18", "24", "35", "60", "140")
    )
    return f"{number} " + _pick(inventor, "metres kilometres centimetres miles feet")


def _mass(inventor: Inventor) -> str:
    return f"{inventor.random.choice(('0.8', '1.2', '2.5', '4', '7', '11', '18', '45', '90'))} " + _pick(
        inventor, "kg kg kilograms tonnes grams pounds"
    )


def _heat(inventor: Inventor) -> str:
    sign = inventor.random.choice((" °C", " degrees", " degrees Celsius"))
    return f"{inventor.random.randint(2, 48) * 5}{sign}"


def _people(inventor: Inventor) -> str:
    return f"{inventor.random.randint(1, 999)},{inventor.random.randint(0, 999):03}"


def _ordinal(inventor: Inventor) -> str:
    return _pick(inventor, "first second third fourth fifth sixth seventh eighth ninth tenth")


def _colour(inventor: Inventor) -> str:
    return _pick(inventor, "red green blue yellow orange white black violet grey brown amber turquoise")


def _part(inventor: Inventor) -> str:
    return f"the {inventor.thing()}"


def _small(inventor: Inventor) -> str:
    return str(inventor.random.randint(2, 12))


def _port(inventor: Inventor) -> str:
    return str(inventor.random.randint(1024, 65535))


def _exit_code(inventor: Inventor) -> str:
    return str(inventor.random.choice((1, 3, 4, 5, 7, 9, 10, 12, 64, 65, 70, 74, 75, 78, 99, 126, 127)))


DRAWERS: Mapping[str, Callable[[Inventor], str]] = {
    "bytes": _bytes,
    "clock": _clock,
    "code": _code,
    "colour": _colour,
    "command": _command,
    "count": _count,
    "date": _date,
    "exit_code": _exit_code,
    "file": _file,
    "heat": _heat,
    "mass": _mass,
    "measure": _measure,
    "moment": _moment,
    "money": _money,
    "name": Inventor.name,
    "ordinal": _ordinal,
    "part": _part,
    "people": _people,
    "percent": _percent,
    "person": Inventor.person,
    "port": _port,
    "product": _product,
    "small": _small,
    "span": _span,
    "year": _year,
}
