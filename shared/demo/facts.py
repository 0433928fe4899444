"""Made-up facts: one sentence each, with questions whose answer is that sentence, word for word."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shared.demo import words as w
from shared.demo.invent import Inventor, capital

TAIL_PROBABILITY = 0.2


@dataclass(frozen=True, slots=True)
class Fact:
    """One sentence, the questions it answers, and its kind (for scores by kind)."""

    kind: str
    sentence: str
    questions: tuple[str, ...]


def make_fact(inventor: Inventor, entity: str | None = None) -> Fact:
    """A fact of a random kind, about `entity` where it is given and the kind has an entity."""
    kind = inventor.random.choices(_KINDS, weights=_WEIGHTS)[0]
    return kind(inventor, entity or inventor.entity())


def attribute_fact(inventor: Inventor, entity: str, attribute: str | None = None) -> Fact:
    """The harbour master of Velmora is Tasin Orrel."""
    attribute = attribute or inventor.thing()
    value = inventor.value()
    who = "Who" if value[0].isupper() else "What"
    if inventor.chance(0.17):
        body = f"{entity} has the {attribute} {value}"
    else:
        body = f"The {attribute} of {entity} is {value}"
    questions = (
        f"{who} is the {attribute} of {entity}?",
        f"{who} is the {attribute} of {entity}?",
        f"What {attribute} does {entity} have?",
        f"Tell me the {attribute} of {entity}.",
        f"What is {entity}'s {attribute}?",
    )
    return Fact("attribute", _sentence(inventor, body), questions)


def _bare(inventor: Inventor, entity: str) -> Fact:
    """The heartbeat interval is 250 ms."""
    del entity
    thing = inventor.thing()
    value = inventor.quantity() if inventor.chance(0.6) else inventor.value()
    how = inventor.random.choice(w.HOW)
    questions = (
        f"What is the {thing}?",
        f"What is the {thing}?",
        f"How {how} is the {thing}?",
        f"Which {thing} is there?",
    )
    return Fact("bare", _sentence(inventor, f"The {thing} is {value}"), questions)


def _action(inventor: Inventor, entity: str) -> Fact:
    """The gateway sends a request to the tokenizer."""
    verb, verbs, _ = inventor.verb()
    target = inventor.entity()
    tail = "" if inventor.chance(0.5) else f" {inventor.random.choice(w.LINKS)} {inventor.entity()}"
    questions = (
        f"What does {entity} {verb}?",
        f"What does {entity} do?",
        f"What {verbs} {target}?",
        f"Which {inventor.random.choice(w.CATEGORIES)} {verbs} {target}?",
    )
    return Fact("action", _sentence(inventor, f"{entity} {verbs} {target}{tail}"), questions)


def _passive(inventor: Inventor, entity: str) -> Fact:
    """The token log is kept in the gateway."""
    past = inventor.verb()[2]
    other = inventor.entity()
    if inventor.chance(0.5):
        questions: tuple[str, ...] = (
            f"What is {entity} {past} by?",
            f"Who {past} {entity}?",
            f"By what is {entity} {past}?",
        )
        return Fact("passive", _sentence(inventor, f"{entity} is {past} by {other}"), questions)
    place = f"{inventor.random.choice(w.PLACES)} {other}"
    questions = (f"Where is {entity} {past}?", f"Where is {entity}?", f"What is {past} {place}?")
    return Fact("passive", _sentence(inventor, f"{entity} is {past} {place}"), questions)


def _count(inventor: Inventor, entity: str) -> Fact:
    """A block holds 16 tokens."""
    verb, verbs = inventor.random.choice(w.HOLDING)
    asked = verb if inventor.chance(0.6) else inventor.random.choice(w.HOLDING)[0]
    unit = inventor.random.choice((inventor.noun() + "s", inventor.random.choice(w.UNITS)))
    questions = (
        f"How many {unit} does {entity} {asked}?",
        f"How many {unit} are in {entity}?",
        f"What does {entity} {verb}?",
    )
    return Fact("count", _sentence(inventor, f"{entity} {verbs} {inventor.number()} {unit}"), questions)


def _job(inventor: Inventor, entity: str) -> Fact:
    """The job of the prefill worker is to fill the cache."""
    role = inventor.random.choice(w.ROLES)
    questions = (f"What is the {role} of {entity}?", f"What does {entity} do?", f"What is {entity} for?")
    return Fact("job", _sentence(inventor, f"The {role} of {entity} is to {inventor.clause()}"), questions)


def _time(inventor: Inventor, entity: str) -> Fact:
    """The gateway sends a heartbeat every 250 ms."""
    verb, verbs, _ = inventor.verb()
    span = f"{inventor.number()} {inventor.random.choice(w.TIME_UNITS)}"
    target = inventor.entity()
    link, how = inventor.random.choice(w.SPANS)
    questions = (f"{how} does {entity} {verb} {target}?", f"{how} does {entity} {verb}?")
    return Fact("time", _sentence(inventor, f"{entity} {verbs} {target} {link} {span}"), questions)


def _reason(inventor: Inventor, entity: str) -> Fact:
    """The gateway sheds a request because the queue needs room."""
    verb, verbs, _ = inventor.verb()
    target = inventor.entity()
    because = (
        f"{inventor.random.choice(w.REASONS)} {inventor.entity()} {inventor.verb()[1]} {inventor.entity()}"
    )
    questions = (f"Why does {entity} {verb} {target}?", f"Why does {entity} {verb}?")
    return Fact("reason", _sentence(inventor, f"{entity} {verbs} {target} {because}"), questions)


def _condition(inventor: Inventor, entity: str) -> Fact:
    """Invent a condition: "When the gateway drops a stream, the session frees the blocks", or the other way
    round."""
    _, verbs, past = inventor.verb()
    link = inventor.random.choice(w.CONDITIONS)
    event = f"{entity} {verbs}" if inventor.chance(0.5) else f"{entity} is {past}"
    cause = f"{link} {event} {inventor.entity()}" if event.endswith(verbs) else f"{link} {event}"
    actor, (base, does, _), target = inventor.entity(), inventor.verb(), inventor.entity()
    body = f"{cause}, {actor} {does} {target}" if inventor.chance(0.6) else f"{actor} {does} {target} {cause}"
    questions = (
        f"What happens {link} {event}?",
        f"What {does} {target}?",
        f"When does {actor} {base} {target}?",
    )
    return Fact("condition", _sentence(inventor, body), questions)


def _definition(inventor: Inventor, entity: str) -> Fact:
    """A lease is a promise that guards the blocks."""
    thing = inventor.thing()
    article = "an" if thing[0] in "aeiouAEIOU" else "a"
    what = (
        f"{inventor.random.choice(('a', 'the', 'one'))} {inventor.thing()} that {inventor.verb()[1]} {entity}"
    )
    questions = (f"What is {article} {thing}?", f"What is the {thing}?", f"What does {article} {thing} mean?")
    return Fact("definition", _sentence(inventor, f"{article} {thing} is {what}"), questions)


def _command(inventor: Inventor, entity: str) -> Fact:
    """The command `make up` starts the stack."""
    name, kind = inventor.identifier(), inventor.random.choice(w.CODE_KINDS)
    verb, verbs, _ = inventor.verb()
    questions = (
        f"What does the {kind} {name} do?",
        f"What does {name} do?",
        f"Which {kind} {verbs} {entity}?",
        f"What does {name} {verb}?",
    )
    body = f"The {kind} {name} {verbs} {entity}" if inventor.chance(0.6) else f"{name} {verbs} {entity}"
    return Fact("command", _sentence(inventor, body), questions)


def _prose(inventor: Inventor, entity: str) -> Fact:
    """Any sentence of the books, asked for by some of its own words: general overlap, not templates."""
    del entity
    sentence = inventor.random.choice(inventor.vocabulary.fillers)
    tokens = sentence.rstrip(".!?").split()
    size = min(len(tokens), inventor.random.randint(2, 4))
    start = inventor.random.randrange(len(tokens) - size + 1)
    span = " ".join(tokens[start : start + size]).strip(",;:\"'")
    long = [token.strip(",;:\"'()") for token in tokens if len(token) > 4] or tokens
    apart = " ".join(inventor.random.sample(long, min(len(long), inventor.random.randint(2, 3))))
    questions = (
        f"What is said about {span}?",
        f"What about {span}?",
        f"What about {apart}?",
        f"Where is {span} mentioned?",
    )
    return Fact("prose", sentence, questions)


def _sentence(inventor: Inventor, body: str) -> str:
    """`body` as a sentence, at times with something appended, as real sentences go on."""
    if not inventor.chance(TAIL_PROBABILITY):
        return capital(f"{body}.")
    tail = inventor.random.choice(w.TAILS).format(
        verbs=inventor.verb()[1], entity=inventor.entity(), other=inventor.entity()
    )
    return capital(f"{body}{tail}.")


_Kind = Callable[[Inventor, str], Fact]
_WEIGHTED: tuple[tuple[_Kind, float], ...] = (
    (attribute_fact, 4.0),
    (_bare, 2.0),
    (_action, 2.0),
    (_passive, 1.5),
    (_count, 1.5),
    (_job, 1.2),
    (_time, 1.2),
    (_reason, 0.7),
    (_condition, 1.0),
    (_definition, 1.2),
    (_command, 1.2),
    (_prose, 2.0),
)
_KINDS = tuple(kind for kind, _ in _WEIGHTED)
_WEIGHTS = tuple(weight for _, weight in _WEIGHTED)
