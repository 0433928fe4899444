"""Follow-ups in a chat: a question that leans on what was said is searched for together with that.

"When was it built?" has no word that a search could go by, and "and in winter?" has few. Whether a question
leans is told by English words alone: pronouns that nothing before them in the question accounts for, what
points back ("that one", "there"), and questions that are too short to be any by themselves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

MAX_LEANING_CHARS = 400
"""A question that is longer says itself what it is about; of what it leans on, so much of each turn."""
MAX_QUESTIONS_BEFORE = 3
"""The most earlier questions of the user, as long as each of them leans on the one before it."""
MAX_SCANNED_TURNS = 16
"""The latest ones."""
USER = "user"

_LATIN = re.compile("[a-z]")
_WORD = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PRONOUNS = _words(
    """he him his himself she her hers herself it its itself they them their theirs themselves he's she's it's
    they're they've"""
)
_OBJECTS = _words("it him them")
_PLAIN = _words(
    """a an the of in on at to for from by with as into about than and or but so then also if since until
    before after during what which who whom whose when where why how many much long far often old is are was
    were be been do does did has have had can could should would will shall may might must not no yes i me my
    you your we us our please tell know there here"""
)
_SUBJECT = re.compile(
    r"(?:\b(?:do|does|did|has|have|had|can|could|will|would|should)(?:n't)?|^(?:is|are|was|were)(?:n't)?)"
    r" (?:the|an?|some|most|many|all|any|each|every|my|your|our)\b(?! \w+ (?:of|between|in|for) \w+$)"
    r"|^(?:who|(?:which|what) \w+) (?:has|have|had|may|can|must|could|would|should)"
    r" (?:its|his|her|their|\w+ )"
)
"""The subject of the question itself, by which a pronoun behind it is accounted for."""
_BEHIND_PREPOSITION = re.compile(
    r"\b(?:of|between|in|for|with|from|on|at|about|near|than|against|into|under|inside|around|behind|like)"
    r" (?:it|him|them)\b"
)
_NO_PRONOUN = re.compile(
    r"\b(?:is|was|does|did|would|will|can) it (?:true|possible|likely|necessary|important|okay|ok|safe|legal"
    r"|hard|easy|take|mean|rain|snow|that|better|best|(?:called|known|said|believed) (?:when|that|how))\b"
    r"|\bit (?:is|was) \w+ (?:to|that)\b"
)
"""Phrases in which "it" stands for nothing."""
_POINTING = re.compile(
    r"\b(?:this|these)\b(?! (?:year|season|week|month|morning|evening|time|days))"
    r"|\bthose\b(?! (?:\w+ )?(?:who|which|that))"
    r"|\b(?:is|was|does|did|do|about|like|after|before|of|why|how) that\b(?! (?:a|an|the)\b)"
    r"|\bthat one\b|\bthat$|(?<!is )(?<!are )(?<!was )(?<!were )\b(?:there|then)$"
    r"|\b(?:the|this|that|which|other|another|first|second|third|last|next) ones?\b"
    r"|\bthe (?:former|latter|same|others?)$"
    r"|^(?:\w+ )?(?:who|what|where|how|when|anything|anyone) else\b"
)
_OPENING = re.compile(
    r"(?:and |but |or |so )?(?:(?:what|how) about|why not|how so|how come|tell me more|more about|go on"
    r"|like what|such as|for example|in what way|which ones?)\b"
)
_DEFINITION = re.compile(r"(?:what|who)(?:'s| is| are| was| were) (?!it$|that$|this$|he$|she$|they$)")
_JOINING = re.compile(r"(?:and|but|or|so|then|also)\b")
JOINED_WORDS = 5
"""A question that begins with "and" and has so many words is a part of the one before, whatever it names."""
JOINED_WORDS_WITHOUT_NAME = 8
BARE_WORDS = 3


def leans(question: str) -> bool:
    """Whether it is about something that it does not name."""
    if len(question) > MAX_LEANING_CHARS:
        return False
    said = _WORD.findall(question.replace("\u2019", "'"))
    low = " ".join(said).lower()
    if not _LATIN.search(low):  # the words below are English ones, and not every script parts its words
        return False
    if _OPENING.match(low) or _POINTING.search(low) or _is_bare(said):
        return True
    if _JOINING.match(low):
        most = JOINED_WORDS if _names(said) else JOINED_WORDS_WITHOUT_NAME
        if len(said) <= most:
            return True
    return _has_loose_pronoun(said, low)


def with_history(question: str, history: Sequence[tuple[str, str]]) -> str:
    """Return the question behind the user's questions that it leans on, else the question as it is.

    `history` has the turns before it, oldest first, each as role and text.
    """
    if not leans(question):
        return question
    before: list[str] = []
    for role, text in reversed(history[-MAX_SCANNED_TURNS:]):
        if role != USER or not text.strip():
            continue
        before.append(text.strip()[:MAX_LEANING_CHARS])
        if len(before) == MAX_QUESTIONS_BEFORE or not leans(text):
            break
    return " ".join([*reversed(before), question])


def _names(said: Sequence[str]) -> bool:
    """Whether it has a word with a capital that is not its first one, or a number."""
    return any((word[0].isupper() and word != "I") or word[0].isdigit() for word in said[1:])


def _is_bare(said: Sequence[str]) -> bool:
    if len(said) > BARE_WORDS or _names(said) or _DEFINITION.match(" ".join(said).lower()):
        return False
    return sum(word.lower() not in _PLAIN for word in said) <= 1


def _has_loose_pronoun(said: Sequence[str], low: str) -> bool:
    words = low.split()
    first = next((place for place, word in enumerate(words) if word in _PRONOUNS), None)
    if first is None or _NO_PRONOUN.search(low):
        return False
    if words[-1] in _OBJECTS or _BEHIND_PREPOSITION.search(low):
        return True  # a verb's subject would be called itself there
    return not _names(said[:first]) and not _SUBJECT.search(" ".join(words[: first + 1]))
