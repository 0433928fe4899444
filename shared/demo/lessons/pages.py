"""Invented pages, as the retriever cuts them into passages: manuals of several parts, encyclopedias."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shared.demo import words as w
from shared.demo.invent import Inventor
from shared.demo.lessons.relation_tables import read_relations
from shared.demo.lessons.relations import Relation, ToldFact, raised, tell
from shared.demo.words import word_list
from shared.retrieval.documents.passages import split_passages

SERVICE_KINDS = word_list("""
worker relay broker scheduler indexer collector planner monitor server agent bridge loader exporter
watcher sorter renderer mailer archiver balancer proxy importer service
""")
DEVICE_KINDS = word_list("""
pump oven lift press heater camera printer scale saw mixer lamp fridge boiler door drill room hall
library workshop garage boat cart tent stove
""")
CREATURES = word_list("""
owl fern moth carp lichen viper thistle newt finch cedar shrew beetle orchid heron
""")
COMMON_RELATIONS_PROBABILITY = 0.6
PRONOUN_PROBABILITY = 0.25
FILLER_PROBABILITY = 0.12
LIST_PROBABILITY = 0.15
MIN_SUBJECTS, MAX_SUBJECTS = 2, 5
MIN_FACTS, MAX_FACTS = 3, 7


@dataclass(frozen=True, slots=True)
class PageFact:
    """A fact of a page: its sentence as it stands there, and how it came to be."""

    subject: str
    relation: Relation
    told: ToldFact
    sentence: str


@dataclass(frozen=True, slots=True)
class Site:
    """Pages about things of one kind: the passages of all of them, the facts that stand in them, and all that
    might have been said about such things."""

    passages: tuple[str, ...]
    facts: tuple[PageFact, ...]
    subjects: tuple[str, ...]
    relations: tuple[Relation, ...]


@dataclass(frozen=True, slots=True)
class Subjects:
    """A kind of thing that pages are about: how one is named, its pronoun, what is said of it."""

    name: Callable[[Inventor], str]
    pronoun: str
    relations: tuple[Relation, ...]


def _service(inventor: Inventor) -> str:
    kind = inventor.random.choice(SERVICE_KINDS)
    pick = inventor.random.random()
    if pick < 0.65:
        return f"the {_word(inventor)} {kind}"
    if pick < 0.75:
        return f"the {kind}"
    if pick < 0.9:
        return inventor.name()
    return f"{inventor.name().lower()}-{inventor.noun()}"


def _device(inventor: Inventor) -> str:
    kind = inventor.random.choice(DEVICE_KINDS)
    pick = inventor.random.random()
    if pick < 0.6:
        return f"the {_word(inventor)} {kind}"
    if pick < 0.8:
        return f"the {inventor.name()} {kind}"
    return f"the {inventor.name()} {inventor.random.randint(2, 900)}"


def _word(inventor: Inventor) -> str:
    return inventor.random.choice((inventor.noun(), inventor.noun(), inventor.random.choice(w.ADJECTIVES)))


def _creature(inventor: Inventor) -> str:
    return f"the {inventor.random.choice((inventor.name(), inventor.random.choice(w.ADJECTIVES)))} " + (
        inventor.random.choice(CREATURES)
    )


SUBJECTS = (
    (Subjects(_service, "It", read_relations("services")), 0.5),
    (Subjects(_device, "It", read_relations("devices")), 0.16),
    (Subjects(Inventor.name, "It", read_relations("towns")), 0.1),
    (Subjects(Inventor.person, "", read_relations("people")), 0.1),
    (Subjects(_creature, "It", read_relations("nature")), 0.07),
    (Subjects(Inventor.name, "It", read_relations("companies")), 0.07),
)


def invent_site(inventor: Inventor) -> Site:
    """Pages of two to five subjects, which often say the same sort of thing with other values."""
    random = inventor.random
    kinds = random.choices([kind for kind, _ in SUBJECTS], [share for _, share in SUBJECTS])[0]
    names = list(
        dict.fromkeys(kinds.name(inventor) for _ in range(random.randint(MIN_SUBJECTS, MAX_SUBJECTS)))
    )
    common = random.sample(kinds.relations, min(len(kinds.relations), MAX_FACTS))
    passages: list[str] = []
    facts: list[PageFact] = []
    for name in names:
        relations = common if inventor.chance(COMMON_RELATIONS_PROBABILITY) else kinds.relations
        chosen = random.sample(relations, min(len(relations), random.randint(MIN_FACTS, MAX_FACTS)))
        told = [
            _page_fact(inventor, name, relation, kinds.pronoun if number else "")
            for number, relation in enumerate(chosen)
        ]
        facts += told
        passages += [passage.text for passage in split_passages(_page(inventor, name, told), markdown=True)]
    return Site(tuple(passages), tuple(facts), tuple(names), kinds.relations)


def _page_fact(inventor: Inventor, name: str, relation: Relation, pronoun: str) -> PageFact:
    """The page is about `name`, so that some sentences say only `pronoun`, where there is one."""
    told = tell(inventor, relation, name)
    sentence = told.sentence
    if pronoun and sentence.startswith(raised(name) + " ") and inventor.chance(PRONOUN_PROBABILITY):
        sentence = pronoun + sentence[len(name) :]
    return PageFact(name, relation, told, sentence)


def _page(inventor: Inventor, name: str, facts: list[PageFact]) -> str:
    """Markdown."""
    lines = [fact.sentence for fact in facts]
    if inventor.chance(FILLER_PROBABILITY):
        lines.insert(inventor.random.randrange(1, len(lines) + 1), inventor.random.choice(w.FILLERS))
    if inventor.chance(LIST_PROBABILITY):
        return f"# {raised(name)}\n\n{lines[0]}\n\n" + "\n".join(f"* {line}" for line in lines[1:])
    half = inventor.random.randint(1, len(lines))
    return f"# {raised(name)}\n\n{' '.join(lines[:half])}\n\n{' '.join(lines[half:])}"
