"""Question answering over passages: a fact, distractors and prose around it, a question, the answer.

Answering is finding the sentence and copying it. Invented names belong to training or to evaluation by their
hash, never to both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from shared.demo.facts import Fact, attribute_fact, make_fact
from shared.demo.invent import Inventor, capital
from shared.demo.prompt import SYSTEM_TEXT, chat_text
from shared.text.retrieval_prompt import CONTEXT_FORM, retrieval_prompt

MAX_PASSAGES = 4
SYSTEM_PART_PROBABILITY = 0.5
RELATED_PROBABILITY = 0.3
FIXED_ATTRIBUTE_PROBABILITY = 0.3
HEADING_PROBABILITY = 0.15
LOOSE_PROBABILITY = 0.2


@dataclass(frozen=True, slots=True)
class Example:
    """A question about some passages.

    `prompt` and `answer` are the rendered text up to the answer, and the answer without its <|end|>.
    """

    kind: str
    prompt: str
    answer: str
    passages: tuple[str, ...]
    question: str


def make_example(inventor: Inventor, facts: int, fillers: int) -> Example:
    """An exchange about one of `facts` facts, hidden among `fillers` sentences in one to four passages."""
    random = inventor.random
    entity, attribute = inventor.entity(), inventor.thing()
    if inventor.chance(FIXED_ATTRIBUTE_PROBABILITY):
        asked = attribute_fact(inventor, entity, attribute)
    else:
        asked = make_fact(inventor, entity)
    question = _loosened(inventor, random.choice(asked.questions))
    told = [asked]
    while len(told) < facts:
        other = _distractor(inventor, asked.kind, entity, attribute)
        if not any(_confusable(other, fact) for fact in told):
            told.append(other)
    sentences = [fact.sentence for fact in told]
    prose = random.choices(inventor.vocabulary.fillers, k=fillers)
    sentences += [sentence for sentence in prose if sentence != asked.sentence]
    random.shuffle(sentences)
    if inventor.chance(HEADING_PROBABILITY):
        sentences.insert(0, f"{'#' * random.randint(1, 3)} {capital(inventor.thing())}")
    passages = _dealt(inventor, sentences)
    system = SYSTEM_TEXT if inventor.chance(SYSTEM_PART_PROBABILITY) else None
    prompt = chat_text(retrieval_prompt(passages, question, CONTEXT_FORM), system)
    return Example(asked.kind, prompt, asked.sentence, tuple(passages), question)


def _confusable(one: Fact, other: Fact) -> bool:
    """Whether some question could mean either fact."""
    return one.sentence == other.sentence or bool(set(one.questions) & set(other.questions))


def _distractor(inventor: Inventor, kind: str, entity: str, attribute: str) -> Fact:
    """Another fact; often the same entity, nearly the same entity, or the same attribute of another one."""
    if not inventor.chance(RELATED_PROBABILITY):
        return make_fact(inventor)
    pick = inventor.random.random()
    if kind == "attribute" and pick < 0.4:
        return attribute_fact(inventor, inventor.entity(), attribute)
    if pick < 0.7:
        return make_fact(inventor, entity)
    return make_fact(inventor, inventor.cousin(entity))


def _loosened(inventor: Inventor, question: str) -> str:
    """The question as people type it: at times another article, no question mark, no capital."""
    if not inventor.chance(LOOSE_PROBABILITY):
        return question
    article = inventor.random.choice((" a ", " ", " each ", " the "))
    return inventor.random.choice(
        (question.replace(" the ", article, 1), question.rstrip("?."), question[0].lower() + question[1:])
    )


def _dealt(inventor: Inventor, sentences: Sequence[str]) -> list[str]:
    """The sentences in order, dealt into one to four passages."""
    count = min(len(sentences), inventor.random.randint(1, MAX_PASSAGES))
    cuts = sorted(inventor.random.sample(range(1, len(sentences)), count - 1))
    bounds = [0, *cuts, len(sentences)]
    return [" ".join(sentences[start:end]) for start, end in pairwise(bounds)]
