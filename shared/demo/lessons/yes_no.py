"""Questions for yes or no, made of what a page says or of another question with its answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from shared.demo.words import word_list

_VERBS = {
    "adds": "add", "allows": "allow", "belongs": "belong", "bought": "buy", "builds": "build",
    "chooses": "choose", "computes": "compute", "consists": "consist", "costs": "cost", "degrades": "degrade",
    "discovered": "discover", "earned": "earn", "eats": "eat", "employs": "employ", "expires": "expire",
    "exports": "export", "feeds": "feed", "flows": "flow", "founded": "found", "frees": "free",
    "gives": "give", "guards": "guard", "handles": "handle", "has": "have", "holds": "hold",
    "keeps": "keep", "lasts": "last",
    "lays": "lay", "lies": "lie", "listens": "listen", "lives": "live", "maintains": "maintain",
    "makes": "make", "married": "marry", "means": "mean", "names": "name", "needs": "need", "opens": "open",
    "closes": "close", "picks": "pick", "reads": "read", "recovers": "recover", "reports": "report",
    "restores": "restore", "runs": "run", "sells": "sell", "sends": "send", "shows": "show", "sorts": "sort",
    "starts": "start", "stops": "stop", "stores": "store", "studied": "study", "takes": "take",
    "talks": "talk", "taught": "teach", "tells": "tell", "turns": "turn", "uses": "use", "waits": "wait",
    "warns": "warn", "weighs": "weigh", "won": "win", "works": "work", "writes": "write", "wrote": "write",
    "died": "die", "designed": "design", "contains": "contain", "produces": "produce",
}  # fmt: skip
"""The forms of verbs on pages, and the form beside `does`."""
_PAST = frozenset(
    word_list("bought discovered earned founded married studied taught won wrote died designed")
)
_STATES = ("is", "are", "was", "were", "has", "had")
_BEFORE_VERBS = ("may", "can", "must", "will", "does", "do", "did")
_BASES = frozenset(_VERBS.values())
_STATED = re.compile(r"^[^;:]+\.$")
_NO_SUBJECT = frozenset(
    word_list("""
In When If Before After Out For With Only From Between Because Without Once Up Since As Born At On To Every
Nobody Nothing Not Do Run Use Clean Turn Change Ask You It One Last According Exports Half Charging Noise
Requests There What Old
""")
)
_DENIED = re.compile(r"\b(?:never|not|nothing|nobody|only|but|what|who|which|why)\b|,", re.IGNORECASE)
_OPEN_END = re.compile(r" (?:for|in|of|to|do|like|with|by|on|from|at|have)$")
_ARTICLES = ("The", "A", "An", "the", "a", "an")
_ASKED = re.compile(
    r"^(?P<word>Who|What|Which|How many|How much|How (?:long|old|high|tall|heavy|big))"
    r"(?: (?P<thing>[a-z{][^ ]*(?: [a-z{][^ ]*)??))??"
    rf" (?P<helper>{'|'.join(_STATES + _BEFORE_VERBS)}) (?P<rest>.+)\?$"
)


def asked_of_statement(sentence: str) -> str | None:
    """The question whether `sentence` is true, where its form is a simple one."""
    first = sentence.split(" ", 1)[0]
    if _STATED.match(sentence) is None or _DENIED.search(sentence) or first in _NO_SUBJECT:
        return None
    words = sentence[:-1].split(" ")
    for place, word in enumerate(words[1:-1], start=1):
        subject, rest = " ".join(words[:place]), " ".join(words[place + 1 :])
        if word in ("is", "are", "was", "were", "may", "can", "must"):
            return f"{word.capitalize()} {_lowered(subject)} {rest}?"
        if word in _VERBS and words[place - 1] not in _ARTICLES:
            helper = "Did" if word in _PAST else "Does"
            return f"{helper} {_lowered(subject)} {_VERBS[word]} {rest}?"
    return None


def asked_of_answer(question: str, answer: str) -> str | None:
    """The question whether `answer` answers `question`, where the latter's form is a simple one."""
    match = _ASKED.match(question)
    if match is None:
        return None
    word, thing, helper, rest = match["word"], match["thing"] or "", match["helper"], match["rest"]
    if helper in _BEFORE_VERBS:
        parts = _behind_verb(word, thing, rest, answer)
    elif _OPEN_END.search(rest):
        parts = []
    elif word.startswith("How"):
        parts = _measured(word.removeprefix("How "), thing, rest, answer)
    elif word == "What" and not thing and rest.startswith("the "):
        parts = [rest, answer]
    else:
        parts = [_lowered(answer), rest]
    return " ".join([helper.capitalize(), *parts]) + "?" if parts else None


def _behind_verb(word: str, thing: str, rest: str, answer: str) -> list[str]:
    """Return `the relay hold 16 files`; nothing where it does not end with a verb that takes the answer."""
    if rest.rsplit(" ", 1)[-1] not in _BASES:
        return []
    if word == "How many" and thing:
        return [rest, answer, thing]
    if word == "How much" and thing:
        return [rest, answer, "of", thing]
    return [] if thing and rest.endswith(" have") else [rest, answer]


def _measured(of: str, thing: str, rest: str, answer: str) -> list[str]:
    """Return `five passengers on board` or `the saw 3 feet long`."""
    if of == "many":
        return [answer, thing, rest] if thing and thing not in answer else []
    return [] if of == "much" or thing else [rest, answer, of]


def asked_whether(sentences: Sequence[str], pairs: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """All questions for yes or no that statements, and questions with their answers, make; none twice."""
    made = [asked_of_statement(sentence) for sentence in sentences]
    made += [asked_of_answer(question, answer) for question, answer in pairs]
    return tuple(dict.fromkeys(question for question in made if question is not None))


def granted(answer: str) -> str:
    """The answer to a question whether `answer` is so."""
    return f"Yes, {answer}"


def denied(answer: str) -> str:
    """The answer to a question whether something else is so."""
    return f"No, {answer}"


def _lowered(subject: str) -> str:
    first, *rest = subject.split(" ")
    return " ".join([first.lower(), *rest]) if first in ("The", "A", "An", "Each", "It") else subject
