"""Invented names, things, numbers and identifiers: the material that made-up facts consist of."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random

from shared.demo import words as w

HELD_OUT_NAMES_PER_MILLE = 100


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Words to build facts from, and sentences to hide them among."""

    nouns: tuple[str, ...]
    fillers: tuple[str, ...]


def default_vocabulary() -> Vocabulary:
    """Return the vocabulary that this package brings, for use without any books."""
    return Vocabulary(nouns=w.NOUNS, fillers=w.FILLERS)


def is_held_out_name(name: str) -> bool:
    """Whether an invented name is kept out of training; a function of the name alone."""
    digest = hashlib.sha256(name.lower().encode()).digest()
    return int.from_bytes(digest[:4], "big") % 1000 < HELD_OUT_NAMES_PER_MILLE


@dataclass(slots=True)
class Inventor:
    """Draws words and phrases. `held_out` chooses which side of the name split invented names come from."""

    random: Random
    vocabulary: Vocabulary
    held_out: bool = False

    @classmethod
    def seeded(cls, seed: int, vocabulary: Vocabulary, held_out: bool = False) -> Inventor:
        """One whose draws are a function of `seed`."""
        return cls(Random(seed), vocabulary, held_out)  # noqa: S311 - draws training data, guards no secret

    def chance(self, probability: float) -> bool:
        """True with `probability`."""
        return self.random.random() < probability

    def name(self) -> str:
        """One invented capitalised word from the right side of the split."""
        while True:
            syllables = self.random.choice((1, 1, 2, 2, 2, 2, 3))
            pairs = ((self.random.choice(w.ONSETS), self.random.choice(w.VOWELS)) for _ in range(syllables))
            word = "".join(onset + vowel for onset, vowel in pairs) + self.random.choice(w.CODAS)
            if len(word) > 3 and is_held_out_name(word) == self.held_out:
                return word.capitalize()

    def person(self) -> str:
        """An invented person."""
        return f"{self.name()} {self.name()}" if self.chance(0.6) else self.name()

    def noun(self) -> str:
        """A content word: technical, everyday, or any word at all from the books."""
        pool = self.random.choice((w.NOUNS, self.vocabulary.nouns, w.TECHNICAL))
        return self.random.choice(pool)

    def verb(self) -> tuple[str, str, str]:
        """(base, third person, participle) of a verb."""
        return self.random.choice(w.VERBS)

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

    def number(self) -> str:
        """Digits of one to five places, a decimal, or a small number in words."""
        pick = self.random.random()
        if pick < 0.1:
            return self.random.choice(w.NUMBER_WORDS)
        if pick < 0.2:
            return f"{self.random.randrange(100)}.{self.random.randrange(100)}"
        return str(self.random.randrange(10 ** self.random.randint(1, 5)))

    def quantity(self) -> str:
        """A number, mostly with a unit."""
        return self.number() if self.chance(0.25) else f"{self.number()} {self.random.choice(w.UNITS)}"

    def entity(self) -> str:
        """Draw what a fact is about: a name, `the thing`, `a thing` or an identifier."""
        pick = self.random.random()
        if pick < 0.27:
            return self.name()
        if pick < 0.77:
            return f"the {self.thing()}"
        if pick < 0.86:
            thing = self.thing()
            return f"{'an' if thing[0] in 'aeiouAEIOU' else 'a'} {thing}"
        return self.identifier()

    def cousin(self, entity: str) -> str:
        """An entity that shares all words but one with `entity`, where that has several; else a new one."""
        parts = entity.split(" ")
        if len(parts) < 3 or "`" in entity:
            return self.entity()
        parts[self.random.randrange(1, len(parts))] = self.noun()
        return " ".join(parts)

    def value(self) -> str:
        """Draw the value of an attribute: person, quantity, identifier, phrase."""
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
        tail = "" if self.chance(0.5) else f" {self.random.choice(w.LINKS)} {self.entity()}"
        return f"{self.verb()[0]} {self.entity()}{tail}"


def capital(sentence: str) -> str:
    """`sentence` with its first letter raised, unless it starts with code."""
    first = sentence.split(" ", 1)[0]
    code = any(sign in first for sign in "_`-./")
    return sentence if code else sentence[0].upper() + sentence[1:]
