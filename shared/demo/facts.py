"""Grounded question answering made up from nothing: facts, questions about them, distractors, passages.

Every fact is one sentence with questions whose answer is that sentence, word for word, so answering is
finding and copying. Subjects are invented names, identifiers and random content words; a name belongs to
training or to evaluation by its hash, never to both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from shared.demo import words as w
from shared.demo.prompt import SYSTEM_TEXT, chat_text, retrieval_prompt

HELD_OUT_NAMES_PER_MILLE = 100
MAX_PASSAGES = 4
SYSTEM_PART_PROBABILITY = 0.5
RELATED_PROBABILITY = 0.45
MARKUP_PROBABILITY = 0.15


@dataclass(frozen=True, slots=True)
class Fact:
    """One sentence, the questions it answers, and its kind (for scores by kind)."""

    kind: str
    sentence: str
    questions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """One exchange: rendered prompt up to the answer, and the answer without its <|end|>."""

    kind: str
    prompt: str
    answer: str
    passages: tuple[str, ...]
    question: str


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words to build facts from, and sentences to hide them among."""

    nouns: tuple[str, ...]
    fillers: tuple[str, ...]


def default_vocabulary() -> Vocabulary:
    """What this package brings itself, for use without any books."""
    return Vocabulary(nouns=w.NOUNS, fillers=w.FILLERS)


def is_held_out_name(name: str) -> bool:
    """Whether an invented name is kept out of training; a function of the name alone."""
    digest = hashlib.sha256(name.lower().encode()).digest()
    return int.from_bytes(digest[:4], "big") % 1000 < HELD_OUT_NAMES_PER_MILLE


@dataclass(slots=True)
class Maker:
    """Draws facts. `held_out` chooses which side of the name split invented names come from."""

    random: Random
    vocabulary: Vocabulary
    held_out: bool = False

    def name(self) -> str:
        """One invented capitalised word from the right side of the split."""
        while True:
            syllables = self.random.choice((1, 1, 2, 2, 2, 2, 3))
            stem = "".join(
                self.random.choice(w.ONSETS) + self.random.choice(w.VOWELS) for _ in range(syllables)
            )
            word = (stem + self.random.choice(w.CODAS)).capitalize()
            if len(word) > 3 and is_held_out_name(word) == self.held_out:
                return word

    def noun(self) -> str:
        """A content word: technical, everyday, or any word at all from the books."""
        pool = self.random.choice((w.NOUNS, self.vocabulary.nouns, w.TECHNICAL))
        return self.random.choice(pool)

    def thing(self) -> str:
        """A noun phrase without its article: one to three words, at times with an invented name."""
        pick = self.random.random()
        if pick < 0.25:
            return self.noun()
        if pick < 0.6:
            return f"{self.noun()} {self.noun()}"
        if pick < 0.75:
            return f"{self.random.choice(w.ADJECTIVES)} {self.noun()}"
        if pick < 0.85:
            return f"{self.name()} {self.noun()}"
        if pick < 0.93:
            return f"{self.random.choice(w.ADJECTIVES)} {self.noun()} {self.noun()}"
        return f"{self.noun()} {self.noun()} {self.noun()}"

    def identifier(self) -> str:
        """Something in code style: snake_case, dotted, an option, a file, a command, a capital constant."""
        first, second = self.noun(), self.noun()
        form = self.random.choice(w.IDENTIFIERS)
        return form.format(a=first, b=second, A=first.upper(), B=second.upper(), n=self.random.randrange(100))

    def quantity(self) -> str:
        """A number, mostly with a unit."""
        number = self.number()
        return number if self.random.random() < 0.25 else f"{number} {self.random.choice(w.UNITS)}"

    def number(self) -> str:
        """Digits of one to five places, a decimal, or a small number in words."""
        pick = self.random.random()
        if pick < 0.1:
            return self.random.choice(w.NUMBER_WORDS)
        if pick < 0.2:
            return f"{self.random.randrange(100)}.{self.random.randrange(100)}"
        return str(self.random.randrange(10 ** self.random.randint(1, 5)))

    def entity(self) -> str:
        """What a fact is about, ready to follow a preposition: a name, `the thing`, an identifier."""
        pick = self.random.random()
        if pick < 0.3:
            return self.name()
        if pick < 0.85:
            return f"the {self.thing()}"
        return self.identifier()

    def person(self) -> str:
        """An invented person."""
        return f"{self.name()} {self.name()}" if self.random.random() < 0.6 else self.name()

    def value(self) -> str:
        """What an attribute can be: person, quantity, identifier, phrase."""
        pick = self.random.random()
        if pick < 0.25:
            return self.person()
        if pick < 0.55:
            return self.quantity()
        if pick < 0.7:
            return self.identifier()
        if pick < 0.85:
            return f"{self.random.choice(w.ARTICLES)} {self.thing()}"
        return self.clause()

    def clause(self) -> str:
        """`verb the thing`, at times with a place or a second object."""
        verb = self.random.choice(w.VERBS)[0]
        tail = "" if self.random.random() < 0.5 else f" {self.random.choice(w.LINKS)} {self.entity()}"
        return f"{verb} {self.entity()}{tail}"

    def fact(self, entity: str | None = None, attribute: str | None = None) -> Fact:
        """A fact of a random kind; about `entity` or with `attribute` where these are given."""
        entity = entity or self.entity()
        if attribute is not None:
            return self._attribute(entity, attribute)
        maker = self.random.choices(_KINDS, weights=_WEIGHTS)[0]
        return maker(self, entity)

    def _attribute(self, entity: str, attribute: str | None = None) -> Fact:
        attribute = attribute or self.thing()
        value = self.value()
        who = "Who" if value[0].isupper() else "What"
        form = self.random.randrange(6)
        sentence = (
            _capital(f"{entity} has the {attribute} {value}.")
            if form == 0
            else f"The {attribute} of {entity} is {value}."
        )
        questions = (
            f"{who} is the {attribute} of {entity}?",
            f"{who} is the {attribute} of {entity}?",
            f"What {attribute} does {entity} have?",
            f"Tell me the {attribute} of {entity}.",
            _capital(f"{entity}: what is the {attribute}?"),
        )
        return Fact("attribute", sentence, questions)

    def _action(self, entity: str) -> Fact:
        verb, verbs, _ = self.random.choice(w.VERBS)
        target = self.entity()
        tail = "" if self.random.random() < 0.5 else f" {self.random.choice(w.LINKS)} {self.entity()}"
        sentence = _capital(f"{entity} {verbs} {target}{tail}.")
        questions = (
            f"What does {entity} {verb}?",
            f"What does {entity} do?",
            f"What {verbs} {target}?",
            f"Which {self.random.choice(w.CATEGORIES)} {verbs} {target}?",
        )
        return Fact("action", sentence, questions)

    def _passive(self, entity: str) -> Fact:
        _, _, past = self.random.choice(w.VERBS)
        agent, place = self.entity(), self.entity()
        preposition = self.random.choice(w.PLACES)
        if self.random.random() < 0.5:
            sentence = f"{entity} is {past} by {agent}."
            questions = (
                f"What is {entity} {past} by?",
                f"Who {past} {entity}?",
                f"By what is {entity} {past}?",
            )
        else:
            sentence = f"{entity} is {past} {preposition} {place}."
            questions = (f"Where is {entity} {past}?", f"Where is {entity}?", f"What is {past} {preposition} {place}?")
        return Fact("passive", _capital(sentence), questions)

    def _count(self, entity: str) -> Fact:
        verb, verbs = self.random.choice(w.HOLDING)
        unit = self.random.choice((self.noun() + "s", self.random.choice(w.UNITS)))
        sentence = _capital(f"{entity} {verbs} {self.number()} {unit}.")
        questions = (
            f"How many {unit} does {entity} {verb}?",
            f"How many {unit} are in {entity}?",
            f"What does {entity} {verb}?",
        )
        return Fact("count", sentence, questions)

    def _job(self, entity: str) -> Fact:
        role = self.random.choice(w.ROLES)
        clause = self.clause()
        sentence = f"The {role} of {entity} is to {clause}."
        questions = (
            f"What is the {role} of {entity}?",
            f"What does {entity} do?",
            f"What is {entity} for?",
        )
        return Fact("job", sentence, questions)

    def _time(self, entity: str) -> Fact:
        verb, verbs, _ = self.random.choice(w.VERBS)
        span = f"{self.number()} {self.random.choice(w.TIME_UNITS)}"
        target = self.entity()
        form = self.random.randrange(3)
        if form == 0:
            sentence = f"{entity} {verbs} {target} every {span}."
            questions = (f"How often does {entity} {verb} {target}?", f"How often does {entity} {verb}?")
        elif form == 1:
            sentence = f"{entity} {verbs} {target} after {span}."
            questions = (f"When does {entity} {verb} {target}?", f"After how long does {entity} {verb}?")
        else:
            sentence = f"{entity} {verbs} {target} within {span}."
            questions = (f"How fast does {entity} {verb} {target}?", f"How soon does {entity} {verb}?")
        return Fact("time", _capital(sentence), questions)

    def _reason(self, entity: str) -> Fact:
        verb, verbs, _ = self.random.choice(w.VERBS)
        target, other = self.entity(), self.entity()
        sentence = f"{entity} {verbs} {target} {self.random.choice(w.REASONS)} {other} {self.random.choice(w.VERBS)[1]} {self.entity()}."
        questions = (f"Why does {entity} {verb} {target}?", f"Why does {entity} {verb}?")
        return Fact("reason", _capital(sentence), questions)

    def _condition(self, entity: str) -> Fact:
        verb, verbs, past = self.random.choice(w.VERBS)
        target = self.entity()
        link = self.random.choice(w.CONDITIONS)
        what = self.clause().split(" ", 1)[1]
        outcome = self.random.choice(w.VERBS)[1]
        if self.random.random() < 0.5:
            sentence = f"{link} {entity} {verbs} {target}, {what} {outcome} {self.entity()}."
        else:
            sentence = f"{link} {entity} is {past}, {what} {outcome} {self.entity()}."
        questions = (f"What happens {link} {entity} {verbs}?", f"What happens {link} {entity} is {past}?")
        questions = (questions[0],) if f"{entity} {verbs}" in sentence else (questions[1],)
        return Fact("condition", _capital(sentence), (*questions, f"What {outcome} {link} {entity} {verb}s?")[:1])

    def _definition(self, entity: str) -> Fact:
        bare = self.thing()
        article = "An" if bare[0] in "aeiou" else "A"
        other = self.thing()
        verbs = self.random.choice(w.VERBS)[1]
        sentence = f"{article} {bare} is {self.random.choice(('a', 'the', 'one'))} {other} that {verbs} {entity}."
        questions = (f"What is {article.lower()} {bare}?", f"What is the {bare}?", f"What does {article.lower()} {bare} mean?")
        return Fact("definition", sentence, questions)

    def _command(self, entity: str) -> Fact:
        name = self.identifier()
        kind = self.random.choice(w.CODE_KINDS)
        verb, verbs, _ = self.random.choice(w.VERBS)
        sentence = f"The {kind} {name} {verbs} {entity}."
        questions = (
            f"What does the {kind} {name} do?",
            f"What does {name} do?",
            f"Which {kind} {verbs} {entity}?",
            f"What does {name} {verb}?",
        )
        return Fact("command", sentence, questions)

    def _prose(self, entity: str) -> Fact:
        """Any sentence at all, asked for by some of its own words: general overlap, not templates."""
        del entity
        sentence = self.random.choice(self.vocabulary.fillers)
        tokens = sentence.rstrip(".!?").split()
        size = min(len(tokens), self.random.randint(2, 4))
        start = self.random.randrange(len(tokens) - size + 1)
        span = " ".join(tokens[start : start + size]).strip(",;:\"'")
        long = [token.strip(",;:\"'()") for token in tokens if len(token) > 4] or tokens
        apart = " ".join(self.random.sample(long, min(len(long), self.random.randint(2, 3))))
        questions = (f"What is said about {span}?", f"What about {span}?", f"What about {apart}?", f"Where is {span} mentioned?")
        return Fact("prose", sentence, questions)

    def related(self, fact_entity: str, attribute: str) -> Fact:
        """A distractor of an attribute fact: the same entity or the same attribute, not both."""
        if self.random.random() < 0.5:
            return self._attribute(fact_entity)
        return self._attribute(self.entity(), attribute)


_Kind = Callable[[Maker, str], Fact]
_WEIGHTED: tuple[tuple[_Kind, float], ...] = (
    (Maker._attribute, 5.0),
    (Maker._action, 2.0),
    (Maker._passive, 1.5),
    (Maker._count, 1.5),
    (Maker._job, 1.2),
    (Maker._time, 1.2),
    (Maker._reason, 0.6),
    (Maker._condition, 0.6),
    (Maker._definition, 1.2),
    (Maker._command, 1.2),
    (Maker._prose, 2.0),
)
_KINDS = tuple(kind for kind, _ in _WEIGHTED)
_WEIGHTS = tuple(weight for _, weight in _WEIGHTED)


def _capital(sentence: str) -> str:
    """`sentence` with its first letter raised, unless it starts with code."""
    first = sentence.split(" ", 1)[0]
    code = any(sign in first for sign in "_`-./")
    return sentence if code else sentence[0].upper() + sentence[1:]


def make_example(maker: Maker, facts: int, fillers: int) -> Example:
    """An exchange about one of `facts` facts, hidden among `fillers` sentences in one to four passages."""
    random = maker.random
    entity, attribute = maker.entity(), maker.thing()
    asked = maker.fact(entity, attribute if random.random() < 0.3 else None)
    others = []
    while len(others) < facts - 1:
        if random.random() < RELATED_PROBABILITY:
            other = maker.related(entity, attribute) if asked.kind == "attribute" else maker.fact(entity)
        else:
            other = maker.fact()
        if other.sentence != asked.sentence and not set(other.questions) & set(asked.questions):
            others.append(other)
    sentences = [asked.sentence, *(other.sentence for other in others)]
    sentences += [filler for filler in random.choices(maker.vocabulary.fillers, k=fillers) if filler != asked.sentence]
    random.shuffle(sentences)
    if random.random() < MARKUP_PROBABILITY:
        sentences = _with_heading(maker, sentences)
    passages = _split(random, sentences)
    question = random.choice(asked.questions)
    system = SYSTEM_TEXT if random.random() < SYSTEM_PART_PROBABILITY else None
    prompt = chat_text(retrieval_prompt(passages, question), system)
    return Example(asked.kind, prompt, asked.sentence, tuple(passages), question)


def _with_heading(maker: Maker, sentences: Sequence[str]) -> list[str]:
    """The same sentences after a heading, as passages cut from a document begin."""
    return [f"{'#' * maker.random.randint(1, 3)} {_capital(maker.thing())}", *sentences]


def _split(random: Random, sentences: Sequence[str]) -> list[str]:
    """The sentences in order, dealt into one to four passages."""
    count = min(len(sentences), random.randint(1, MAX_PASSAGES))
    cuts = sorted(random.sample(range(1, len(sentences)), count - 1)) if count > 1 else []
    bounds = [0, *cuts, len(sentences)]
    return [" ".join(sentences[start:end]) for start, end in zip(bounds, bounds[1:], strict=False)]
