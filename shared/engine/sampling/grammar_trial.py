"""python -m shared.engine.sampling.grammar_trial: compile grammars where it can be stopped.

The patterns of a grammar of less than a kilobyte can together take minutes and gigabytes to compile, inside
of the library and past its limits. Here such a grammar ends with its process. Its vocabulary is bytes: what
compiling costs does not depend on tokens, and so one process serves any model and loads none.
"""

from __future__ import annotations

import re
import time

import msgpack
from llguidance import LLTokenizer

from shared.engine.sampling.grammar_source import grammar_matcher, grammar_source, on_deep_stack
from shared.errors import InvalidRequest
from shared.process.job_runner import JobLimits, serve_jobs
from shared.sampling.parameters import Grammar

_TOKENS = re.compile(r"<\[[\d, ^-]+\]>|<\|?[\w-]+\|?>")
"""Tokens by their ids or names in Lark's notation."""
_ANY_ID = "<[65]>"
TRIAL_LIMITS = JobLimits(cpu_s=1.0, wall_s=8.0, memory_bytes=768 << 20)
"""A third of the memory is the address space of the compiler's stack. Ordinary grammars take milliseconds."""


def try_grammar(payload: bytes) -> bytes:
    """Compile it as far as the first mask; return the CPU time in seconds that this took, or a sentence that
    says why it cannot be."""
    try:
        verdict: float | str = _time_to_compile(payload)
    except InvalidRequest as refused:
        verdict = refused.message
    return msgpack.packb(verdict)  # type: ignore[no-any-return] # msgpack is untyped


def _time_to_compile(payload: bytes) -> float:
    began_s = time.process_time()
    kind, text = msgpack.unpackb(payload)
    if kind == "ebnf":
        text = _TOKENS.sub(_ANY_ID, text)
    grammar, tokenizer = Grammar(kind, text), LLTokenizer("byte")
    source = on_deep_stack(lambda: grammar_source(grammar))
    on_deep_stack(lambda: grammar_matcher(tokenizer, grammar, source))
    return time.process_time() - began_s


if __name__ == "__main__":
    serve_jobs(try_grammar, TRIAL_LIMITS)
