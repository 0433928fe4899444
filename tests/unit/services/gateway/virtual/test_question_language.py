"""The language of a question is told by script and common words, or not at all."""

from __future__ import annotations

import pytest

from services.gateway.virtual.question_language import UNKNOWN, language_of
from shared.files.virtual_model import LANGUAGES

QUESTIONS = {
    "en": "What is the name of the river that flows through Paris?",
    "de": "Wie heißt der Fluss, der durch Paris fließt?",
    "fr": "Quel est le nom du fleuve qui traverse Paris ?",
    "es": "¿Cuál es el nombre del río que atraviesa París?",
    "it": "Qual è il nome del fiume che attraversa la città di Parigi?",
    "pt": "Qual é o nome do rio que não passa em São Paulo?",
    "nl": "Wat is de naam van de rivier die niet door het land stroomt?",
    "pl": "Jaka jest nazwa rzeki i kto się nad nią urodził?",
    "tr": "Paris için hangi nehir ne zaman önemli bir yol olarak kullanıldı?",  # noqa: RUF001 - as it is written
    "ro": "Care este numele râului și când a fost numit?",
    "vi": "Tên của con sông là gì và được đặt khi nào?",
    "ru": "Как называется река, протекающая через Paris?",
    "el": "Πώς λέγεται ο ποταμός;",  # noqa: RUF001 - as it is written
    "ar": "ما اسم النهر؟",
    "he": "מה שם הנהר?",
    "hi": "नदी का नाम क्या है?",
    "th": "แม่น้ำชื่ออะไร",
    "zh": "这条河叫什么名字？",  # noqa: RUF001 - as it is written
    "ja": "この川の名前は何ですか。",
    "ko": "강의 이름은 무엇입니까?",
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_language_that_rules_may_name_is_told(language: str) -> None:
    assert language_of(QUESTIONS[language]) == language


@pytest.mark.parametrize("text", ["", "42 + 17", "Paris", "de la", "🙂🙂"])
def test_what_no_language_leads_in_is_unknown(text: str) -> None:
    assert language_of(text) == UNKNOWN


def test_only_the_beginning_is_read() -> None:
    assert language_of("the river of what " * 40 + "река " * 100_000) == "en"
