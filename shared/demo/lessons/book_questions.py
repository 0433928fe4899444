"""Questions about paragraphs of books, made from the form of their sentences; answers are their words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shared.demo.invent import Inventor
from shared.demo.words import word_list

MIN_PASSAGE_WORDS, MAX_PASSAGE_WORDS = 25, 90
MAX_ANSWER_WORDS = 12
MAX_QUESTION_WORDS = 18

_SENTENCE = re.compile(r"(?<=[.!?])[\"']?\s+(?=[\"'A-Z])")
_TITLE = r"(?:Mr|Mrs|Dr|St)\. |Miss |Captain |Lady |Lord |Sir |Professor |Aunt |Uncle "
_NAME = rf"(?:{_TITLE})?[A-Z][a-z]{{2,}}(?: [A-Z][a-z]+)?"
_NO_NAMES = frozenset(
    word_list("""
The This That These Those There Then They She Her His Its Our Your And But For Not Now When Where While
What Who Why How With Without After Before Here Yes You All Some One Two Three Even Only Perhaps Nothing
Such Each Every Both Many Much More Most Once Again Just Still Thus Upon Never Ever Had Was Were Are Let
Well Come Good God Heaven Suddenly Presently Nobody Everybody Somebody Another Someone Everyone
Everything Anything Something Though Although Because Since Until Indeed Very Did Does May Might
""")
)
_NO_THINGS = frozenset(
    word_list("""
years days this times hours minutes others was has does his always as
""")
)
_PRONOUNS = frozenset(
    word_list("""
him her it them me us himself herself nothing himself
""")
)
_PAST = {
    "saw": "see", "heard": "hear", "found": "find", "took": "take", "gave": "give", "told": "tell",
    "made": "make", "wrote": "write", "bought": "buy", "brought": "bring", "lost": "lose", "left": "leave",
    "held": "hold", "kept": "keep", "knew": "know", "sent": "send", "opened": "open", "wanted": "want",
    "loved": "love", "hated": "hate", "read": "read", "met": "meet", "wore": "wear", "drew": "draw",
    "broke": "break", "chose": "choose", "felt": "feel", "caught": "catch", "killed": "kill", "asked": "ask",
    "followed": "follow", "feared": "fear", "seized": "seize", "built": "build", "ate": "eat",
    "drank": "drink",
    "carried": "carry", "needed": "need", "noticed": "notice", "remembered": "remember", "offered": "offer",
}  # fmt: skip
_WAYS = {
    "went to": "Where did {n} go?", "came from": "Where did {n} come from?",
    "lived in": "Where did {n} live?",
    "returned to": "Where did {n} return to?", "arrived at": "Where did {n} arrive?",
    "looked at": "What did {n} look at?", "turned to": "What or whom did {n} turn to?",
    "spoke to": "Whom did {n} speak to?", "thought of": "What did {n} think of?",
    "sat in": "Where did {n} sit?", "sat on": "Where did {n} sit?", "ran to": "Where did {n} run?",
    "pointed to": "What did {n} point to?", "waited for": "For what or whom did {n} wait?",
}  # fmt: skip
_NUMBERS = (
    "two|three|four|five|six|seven|eight|nine"
    "|ten|eleven|twelve|fifteen|twenty|thirty|forty|fifty|a hundred|[0-9]{1,4}"
)
_DID = re.compile(rf"^({_NAME}) ({'|'.join(_PAST)}) ((?!that\b|how\b|to\b|out\b|up\b)[a-z][^,.;:!?\"]+)")
_WENT = re.compile(rf"^({_NAME}) ({'|'.join(_WAYS)}) ([^,.;:!?\"]+)")
_WHO = re.compile(
    rf"^({_NAME}) ((?:[a-z]{{3,}}ed|was|had|came|went|ran|stood|sat|lay|began|knew|took|gave) [^,.;:!?\"]+)"
)
_WAS = re.compile(rf"^({_NAME}) was ((?:a|an|the) [a-z][^,.;:!?\"]+)")
_SAID = re.compile(rf"^[\"']([^\"']{{15,120}})[,?!.][\"'] (?:said|asked|cried|replied|answered) ({_NAME})\b")
_MANY = re.compile(rf"\b({_NUMBERS}) ([a-z]{{3,}}s)\b(?! of)")
_BECAUSE = re.compile(r"^([A-Z][^,.;:!?\"]{15,90}),? because ([^,.;:!?\"]{8,90})[,.;!?]")
_HOUR = re.compile(
    r"^([A-Z][^,.;:!?\"]{10,80}) at ((?:half[- ]past )?[a-z]+ o'clock|noon|midnight|dawn|sunset)\b"
)


@dataclass(frozen=True, slots=True)
class BookPassage:
    """Some sentences of a book with (question, answer) pairs about them."""

    text: str
    questions: tuple[tuple[str, str], ...]


def book_passages(text: str) -> list[BookPassage]:
    """The parts of `text` about which there is something to ask, in order."""
    found = []
    for paragraph in text.split("\n\n"):
        plain = re.sub(r"[*_]", "", " ".join(paragraph.split())).translate(
            str.maketrans("\u201c\u201d\u2018\u2019", "\"\"''")
        )
        if plain.startswith("#"):
            continue
        for sentences in _windows(_SENTENCE.split(plain)):
            questions = tuple(pair for sentence in sentences for pair in questions_about(sentence))
            if questions:
                found.append(BookPassage(" ".join(sentences), questions))
    return found


def questions_about(sentence: str) -> Iterator[tuple[str, str]]:
    """(question, answer) for each form that `sentence` has."""
    if (match := _SAID.match(sentence)) and _is_name(match[2]):
        yield f'Who says "{_first_words(match[1])}"?', match[2]
    if (match := _WAS.match(sentence)) and _is_name(match[1]):
        yield f"What was {match[1]}?", match[2]
    elif (match := _DID.match(sentence)) and _is_name(match[1]):
        yield f"What did {match[1]} {_PAST[match[2]]}?", match[3]
    elif (match := _WENT.match(sentence)) and _is_name(match[1]):
        yield _WAYS[match[2]].format(n=match[1]), match[3]
    if (match := _WHO.match(sentence)) and _is_name(match[1]):
        yield f"Who {match[2]}?", match[1]
    if match := _BECAUSE.match(sentence):
        yield f"Why is it that {_lowered(match[1])}?", f"because {match[2]}"
    if match := _HOUR.match(sentence):
        yield f"When was it that {_lowered(match[1])}?", f"at {match[2]}"
    many = _MANY.findall(sentence)
    if len(many) == 1 and many[0][1] not in _NO_THINGS:
        number, things = many[0]
        yield f"How many {things} are spoken of?", number


def fitting_questions(
    inventor: Inventor, passages: Sequence[BookPassage], shown: Sequence[BookPassage]
) -> list[tuple[str, str]]:
    """The questions of `shown` that have one answer among all of `passages`, shuffled."""
    answers: dict[str, set[str]] = {}
    for passage in passages:
        for question, answer in passage.questions:
            answers.setdefault(question, set()).add(answer)
    pairs = [pair for passage in shown for pair in passage.questions if len(answers[pair[0]]) == 1]
    inventor.random.shuffle(pairs)
    return [pair for pair in pairs if _is_short(*pair)]


def _windows(sentences: list[str]) -> Iterator[list[str]]:
    window: list[str] = []
    for sentence in sentences:
        if window and sum(len(part.split()) for part in [*window, sentence]) > MAX_PASSAGE_WORDS:
            yield window
            window = []
        window.append(sentence)
    if sum(len(part.split()) for part in window) >= MIN_PASSAGE_WORDS:
        yield window


def _is_name(words: str) -> bool:
    return words.split(maxsplit=1)[0] not in _NO_NAMES


def _is_short(question: str, answer: str) -> bool:
    if answer.split(maxsplit=1)[0] in _PRONOUNS:
        return False
    return len(answer.split()) <= MAX_ANSWER_WORDS and len(question.split()) <= MAX_QUESTION_WORDS


def _first_words(text: str) -> str:
    return " ".join(text.split()[:8])


def _lowered(clause: str) -> str:
    first = clause.split(" ", 1)[0]
    return (
        clause
        if first == "I" or first not in _NO_NAMES | {"He", "It", "We", "A", "An", "In"}
        else (clause[0].lower() + clause[1:])
    )
