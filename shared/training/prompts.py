"""Make what the target is asked while a draft learns from it: the user's prompts, or questions of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shared.engine import LLM, SamplingParams
from shared.errors import InvalidRequest, NotFound
from shared.messages import ChatTurn
from shared.text.tokenizer import TextTokenizer

MAX_PROMPT_TOKENS = 384
MAX_QUESTION_TOKENS = 96
PASSAGE_TOKENS = 64
MAX_PROMPTS = 100_000
MAX_DATA_BYTES = 256 << 20
TEXT_SUFFIXES = (".txt", ".md")


def read_prompts(
    path: Path, tokenizer: TextTokenizer, most_tokens: int = MAX_PROMPT_TOKENS
) -> list[list[int]]:
    """Ids of prompts, from a file or from all files of a folder, in order.

    A `.jsonl` file has an object per line: "messages" (OpenAI's), "turns" (a list of what a user says: the
    first counts) or "prompt" (a text: the message of a chat where the model has a template). Of `.txt` and
    `.md` files every PASSAGE_TOKENS tokens are a beginning to go on from. Prompts of more than
    MAX_PROMPT_TOKENS are cut at their end. Raises NotFound and InvalidRequest, naming file and line.
    """
    if not path.exists():
        raise NotFound(f"{path} does not exist; give a .jsonl, .txt or .md file, or a folder of them")
    names = (".jsonl", *TEXT_SUFFIXES)
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.suffix in names)
    prompts: list[list[int]] = []
    for file in files:
        if file.stat().st_size > MAX_DATA_BYTES:
            raise InvalidRequest(f"{file} is larger than {MAX_DATA_BYTES} bytes; give a part of it")
        try:
            text = file.read_text("utf-8")
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"{file} is not UTF-8 text ({error}); give .jsonl, .txt or .md") from error
        found = _of_lines(file, text, tokenizer) if file.suffix == ".jsonl" else _of_text(text, tokenizer)
        prompts += [ids[:most_tokens] for ids in found if ids]
    if not prompts:
        raise InvalidRequest(f"{path} holds no prompts; give a .jsonl, .txt or .md file, or a folder of them")
    return prompts[:MAX_PROMPTS]


def _of_lines(file: Path, text: str, tokenizer: TextTokenizer) -> list[list[int]]:
    prompts = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            turns = _turns(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(
                f'{file}, line {number}: {error}; write an object with "prompt", "turns" or "messages"'
            ) from error
        prompts.append(tokenizer.encode_chat(turns, template_optional=True))
    return prompts


def _turns(fields: Any) -> list[ChatTurn]:
    if not isinstance(fields, dict):
        raise ValueError("not an object")  # noqa: TRY004 - one kind of error for whatever a line is
    if isinstance(fields.get("prompt"), str):
        return [ChatTurn("user", fields["prompt"])]
    said = fields.get("turns")
    if isinstance(said, list) and said and isinstance(said[0], str):
        return [ChatTurn("user", said[0])]
    messages = fields.get("messages")
    if isinstance(messages, list) and messages:
        pairs = [(each.get("role"), each.get("content")) for each in messages if isinstance(each, dict)]
        if len(pairs) == len(messages) and all(isinstance(part, str) for pair in pairs for part in pair):
            return [ChatTurn(str(role), str(content)) for role, content in pairs]
    raise ValueError("no prompt in it")


def _of_text(text: str, tokenizer: TextTokenizer) -> list[list[int]]:
    ids = tokenizer.encode_text(text, add_special_tokens=False)
    return [ids[first : first + PASSAGE_TOKENS] for first in range(0, len(ids), PASSAGE_TOKENS)]


def ask_itself(
    llm: LLM, tokenizer: TextTokenizer, count: int, seed: int, most_tokens: int = MAX_PROMPT_TOKENS
) -> list[list[int]]:
    """`count` prompts of the model's own: it writes what a user would say where its chat template has the
    user begin (as Magpie does, arXiv:2406.08464). A model without a template goes on from an empty text."""
    beginning = _user_begins(tokenizer)
    if beginning is None:
        empty = tokenizer.encode_text("") or [llm.engine.model_config.bos_token_id or 0]
        return [empty] * count
    params = [
        SamplingParams(temperature=1.0, seed=seed + index, max_tokens=MAX_QUESTION_TOKENS)
        for index in range(count)
    ]
    asked = llm.generate([beginning] * count, params)
    texts = [tokenizer.decode(question.token_ids).strip() or "Hello" for question in asked]
    return [tokenizer.encode_chat([ChatTurn("user", text)])[:most_tokens] for text in texts]


def _user_begins(tokenizer: TextTokenizer) -> list[int] | None:
    """Return what comes before any user's first word."""
    if not tokenizer.has_chat_template:
        return None
    one, other = (tokenizer.encode_chat([ChatTurn("user", text)]) for text in ("Q", "7 b"))
    same = next((place for place, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), 0)
    return one[:same] or None


def split_held_out(prompts: Sequence[list[int]], every: int = 10) -> tuple[list[list[int]], list[list[int]]]:
    """(to learn from, to measure with): each tenth is kept back, and the only one is both."""
    kept = [ids for index, ids in enumerate(prompts) if index % every == 0]
    return [ids for index, ids in enumerate(prompts) if index % every] or kept, kept
