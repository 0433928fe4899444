"""Encoding and chat templates are those of transformers; broken directories are typed errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from shared.errors import InvalidRequest, NotFound, TooLarge
from shared.messages import ChatTurn
from shared.text import chat_template
from shared.text.retrieval_prompt import CONTEXT_FORM, INSTRUCTED_FORM
from shared.text.tokenizer import TextTokenizer
from tests.support.data import data_dir
from tests.support.tokenizer_kinds import (
    LANGUAGES,
    SAMPLES,
    byte_id,
    id_of,
    library_tokenizer,
    passages,
    text_tokenizer,
)

SEPARATOR = "\n__ggml_vocab_test__\n"
CHAT = (
    ChatTurn("system", "Be brief."),
    ChatTurn("user", "  Who?\n"),
    ChatTurn("assistant", "Äh…"),
    ChatTurn("user", "🙂"),
)

TEMPLATES = {
    "chatml": (
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']"
        " + '<|im_end|>' + '\n'}}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    ),
    "special_tokens": (
        "{{ bos_token }}"
        "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}{{ eos_token }}{% endfor %}"
    ),
    "blocks_on_lines": (
        "{%- if messages[0]['role'] == 'system' %}\n    {%- set system = messages[0]['content'] %}\n"
        "{%- endif %}\n"
        "{% for message in messages %}\n    {% if loop.first %}\n[{{ message['content'] }}]\n"
        "    {% endif %}\n{% endfor %}\nend"
    ),
    "json": (
        "{% for m in messages %}{{ m | tojson }}{{ {'z': 'é<&>', 'a': 1} | tojson(indent=2) }}{% endfor %}"
    ),
    "namespace": (
        "{% set ns = namespace(count=0) %}"
        "{% for m in messages %}{% set ns.count = ns.count + 1 %}{% endfor %}{{ ns.count }}"
    ),
    "loop_controls": (
        "{% for m in messages %}{% if m.role == 'system' %}{% continue %}{% endif %}"
        "{{ m.content }}{% break %}{% endfor %}"
    ),
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "absent": "{% if tools is none and documents is none %}no tools{% endif %}{{ undefined_name }}",
    "date": "{{ strftime_now('%Y') }}",
}


def write_model(folder: Path, kind: str = "byte_level", **config: object) -> Path:
    library_tokenizer(kind).save(str(folder / "tokenizer.json"))
    bos, eos = ("<|endoftext|>",) * 2 if kind == "gpt2" else ("<s>", "</s>")
    merged = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": bos, "eos_token": eos, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(merged))
    return folder


def transformers_chat(folder: Path, turns: tuple[ChatTurn, ...]) -> list[int]:
    messages = [{"role": turn.role, "content": turn.content} for turn in turns]
    ids = AutoTokenizer.from_pretrained(folder).apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    assert isinstance(ids, list)
    return [token_id for token_id in ids if isinstance(token_id, int)]


# ---- encoding -----------------------------------------------------------------------------------


@pytest.mark.thorough(but="stories260k | byte_level | byte_fallback")
@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "gpt2", "stories260k"])
def test_text_is_encoded_as_transformers_does(tmp_path: Path, kind: str) -> None:
    folder = write_model(tmp_path, kind)
    oracle, tokenizer = AutoTokenizer.from_pretrained(folder), TextTokenizer.load(folder)
    texts = [
        *SAMPLES,
        "",
        " ",
        "<s>in the text</s>",
        "a<|endoftext|>b",
        *(text for lang in LANGUAGES for text in passages(lang, 2)),
    ]
    for text in texts:
        assert tokenizer.encode_text(text) == oracle(text)["input_ids"]


@pytest.mark.parametrize("kind", ["gpt2", "qwen2"])
def test_text_is_encoded_as_the_reference_vectors_say(kind: str) -> None:
    tokenizer = text_tokenizer(kind)
    data = data_dir()
    assert data is not None
    name = data / "tokenizer-vectors" / f"ggml-vocab-{kind.replace('gpt2', 'gpt-2')}.gguf"
    cases = Path(f"{name}.inp").read_text().removesuffix(SEPARATOR).split(SEPARATOR)
    answers = Path(f"{name}.out").read_text().splitlines()
    assert len(cases) == len(answers)
    for text, ids in zip(cases, answers, strict=True):
        assert tokenizer.encode_text(text) == [int(token_id) for token_id in ids.split()]


def test_decode_gives_the_text_back_without_special_tokens(tmp_path: Path) -> None:
    tokenizer = TextTokenizer.load(write_model(tmp_path))
    for text in SAMPLES:
        assert tokenizer.decode([1, *tokenizer.encode_text(text), 2]) == text


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "metaspace", "gpt2"])
def test_the_spellings_of_tokens_add_up_to_the_text_they_stand_for(kind: str) -> None:
    tokenizer = text_tokenizer(kind)
    for text in SAMPLES[:2]:
        ids = tokenizer.encode_text(f"a {text}")
        spelled = b"".join(map(tokenizer.token_bytes, ids)).decode()
        assert spelled.removesuffix("</s>").removeprefix("<s>").strip() == tokenizer.decode(ids).strip()


def test_a_special_token_is_spelled_as_its_own_name_and_an_id_without_a_token_as_nothing() -> None:
    tokenizer = text_tokenizer("byte_level")
    special = id_of("byte_level", "</s>")
    assert tokenizer.token_bytes(special) == b"</s>"
    assert tokenizer.token_bytes(tokenizer.vocab_size) == b""


def test_a_byte_of_a_character_is_spelled_as_that_byte() -> None:
    for kind in ("byte_level", "byte_fallback"):
        token_id = byte_id(kind, 0xE4)
        assert text_tokenizer(kind).token_bytes(token_id) == b"\xe4"


def test_truncation_and_padding_of_a_training_run_are_not_kept(tmp_path: Path) -> None:
    write_model(tmp_path)
    spec = json.loads((tmp_path / "tokenizer.json").read_text())
    spec["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    spec["padding"] = {
        "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<unk>",
    }  # fmt: skip
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    tokenizer = TextTokenizer.load(tmp_path)
    assert tokenizer.decode(tokenizer.encode_text(SAMPLES[0])) == SAMPLES[0]
    assert 0 not in tokenizer.encode_text(SAMPLES[0])


def test_lone_surrogates_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="surrogates"):
        TextTokenizer.load(write_model(tmp_path)).encode_text("a\ud800")


def test_the_vocabulary_covers_the_ids_that_a_model_pads_it_with(tmp_path: Path) -> None:
    write_model(tmp_path)
    size = TextTokenizer.load(tmp_path).vocab_size
    assert size == library_tokenizer("byte_level").get_vocab_size()
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": size + 64}))
    padded = TextTokenizer.load(tmp_path)
    padded.check_ids([0, size + 63])
    for wrong in (size + 64, -1):
        with pytest.raises(InvalidRequest, match=f"token id {wrong} "):
            padded.check_ids([0, wrong])


# ---- chat ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TEMPLATES)
def test_chats_are_rendered_as_transformers_does(tmp_path: Path, name: str) -> None:
    folder = write_model(tmp_path, chat_template=TEMPLATES[name])
    assert TextTokenizer.load(folder).encode_chat(CHAT) == transformers_chat(folder, CHAT)


def test_a_rendered_chat_gets_no_second_bos(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "byte_fallback", chat_template=TEMPLATES["special_tokens"])
    ids = TextTokenizer.load(folder).encode_chat(CHAT)
    assert ids == transformers_chat(folder, CHAT)
    assert ids.count(1) == 1


def test_a_template_file_goes_before_the_configuration(tmp_path: Path) -> None:
    folder = write_model(tmp_path, chat_template="configuration")
    (folder / "chat_template.jinja").write_text("file\n{{ messages[0].content }}\n")
    assert TextTokenizer.load(folder).encode_chat(CHAT) == transformers_chat(folder, CHAT)


def test_a_template_may_stand_in_chat_template_json(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "Hi {{ messages[0].content }}"}))
    tokenizer = TextTokenizer.load(folder)
    assert tokenizer.decode(tokenizer.encode_chat(CHAT)) == "Hi Be brief."


def test_of_several_named_templates_the_default_is_used(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    folder = write_model(tmp_path, chat_template=named)
    assert TextTokenizer.load(folder).encode_chat(CHAT) == transformers_chat(folder, CHAT)


def test_special_tokens_may_be_written_as_objects_and_in_their_own_file(tmp_path: Path) -> None:
    write_model(tmp_path, bos_token={"__type": "AddedToken", "content": "<s>"}, eos_token=None)
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({"unk_token": "<unk>"}))
    tokenizer = TextTokenizer.load(tmp_path)
    assert tokenizer.special_tokens == {"bos_token": "<s>", "unk_token": "<unk>"}
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", None)


def test_without_a_template_a_chat_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="plain text"):
        TextTokenizer.load(write_model(tmp_path)).encode_chat(CHAT)


def test_without_a_template_a_chat_may_become_plain_text(tmp_path: Path) -> None:
    tokenizer = TextTokenizer.load(write_model(tmp_path))
    ids = tokenizer.encode_chat(CHAT[:2], template_optional=True)
    assert ids == tokenizer.encode_text("Be brief.\n\n  Who?\n")


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "refuses"),
        ("{{ 1 / 0 }}", "refuses"),
        ("{{ ''.__class__.__mro__ }}", "refuses"),
        ("{% set ns = namespace(__class__=1) %}", "underscore"),
        ("{{ messages.append(1) }}", "refuses"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "refuses"),
    ],
)
def test_what_a_template_raises_is_the_askers_error(tmp_path: Path, template: str, said: str) -> None:
    tokenizer = TextTokenizer.load(write_model(tmp_path, chat_template=template))
    with pytest.raises(InvalidRequest, match=said):
        tokenizer.encode_chat(CHAT)


def test_a_template_that_writes_without_end_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template, "MAX_RENDERED_CHARS", 1000)
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}more and {% endfor %}{% endfor %}"
    tokenizer = TextTokenizer.load(write_model(tmp_path, chat_template=endless))
    with pytest.raises(TooLarge):
        tokenizer.encode_chat(CHAT)


# ---- broken directories -------------------------------------------------------------------------


def test_a_directory_without_a_tokenizer_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"tokenizer\.json"):
        TextTokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", "{"),
        ("tokenizer.json", "[]"),
        ("tokenizer.json", "{}"),
        ("tokenizer_config.json", "not json"),
        ("tokenizer_config.json", '{"chat_template": 5}'),
        ("tokenizer_config.json", '{"chat_template": "{% if %}"}'),
        ("tokenizer_config.json", '{"retrieval_form": "spoken"}'),
        ("config.json", "\u00ff["),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, file: str, content: str) -> None:
    write_model(tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(InvalidRequest, match=r"tokenizer|config\.json|template"):
        TextTokenizer.load(tmp_path)


def test_a_model_says_in_which_form_it_was_taught_to_answer_from_passages(tmp_path: Path) -> None:
    assert TextTokenizer.load(write_model(tmp_path)).retrieval_form == INSTRUCTED_FORM
    assert TextTokenizer.load(write_model(tmp_path, retrieval_form="context")).retrieval_form == CONTEXT_FORM
