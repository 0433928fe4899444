"""llama.cpp on texts, through its Python binding: what it finds likely, and how it goes on.

    python llama_cpp_text.py FILE.gguf --threads 2 --context 1024

Started with the python of an environment that has `llama_cpp`. A request is a JSON line on stdin, its answer
one on stdout: {"score": ids, "skip": n} gives the losses of all tokens behind the first n + 1 and the greedy
choice before each; {"logits": ids, "file": path} leaves float32 [tokens, vocab] there; {"generate": ids,
"most": n, "stop": id or null} gives what it draws greedily, and the seconds of CPU for the prompt and for the
rest.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

import llama_cpp
import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--context", type=int, required=True)
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the library prints what it likes
    shared = {"n_ctx": options.context, "n_batch": 512}
    shared |= {"n_threads": options.threads, "n_threads_batch": options.threads}
    scoring = llama_cpp.Llama(options.model, logits_all=True, verbose=False, **shared)
    writing = llama_cpp.Llama(options.model, verbose=False, **shared)
    for line in sys.stdin:
        request = json.loads(line)
        if "score" in request:
            answer = score(scoring, request)
        elif "logits" in request:
            answer = save_logits(scoring, request)
        else:
            answer = generate(writing, request)
        print(json.dumps(answer), file=answers, flush=True)


def score(model: Any, request: dict[str, Any]) -> dict[str, Any]:
    ids = request["score"]
    model.reset()
    model.eval(ids[:-1])
    logits = np.asarray(model.scores[request["skip"] : len(ids) - 1], dtype=np.float64)
    targets = np.array(ids[request["skip"] + 1 :])
    most = logits.max(1)
    sums = most + np.log(np.exp(logits - most[:, None]).sum(1))
    losses = sums - logits[np.arange(len(targets)), targets]
    return {"losses": losses.tolist(), "choices": logits.argmax(1).tolist()}


def save_logits(model: Any, request: dict[str, Any]) -> dict[str, Any]:
    model.reset()
    model.eval(request["logits"])
    np.save(request["file"], np.asarray(model.scores[: len(request["logits"])], dtype=np.float32))
    return {}


def generate(model: Any, request: dict[str, Any]) -> dict[str, Any]:
    model.reset()
    began = time.process_time()
    model.eval(request["generate"])
    computed = time.process_time()
    drawn: list[int] = []
    while True:
        token = model.sample(temp=0.0, repeat_penalty=1.0)
        drawn.append(token)
        if token == request["stop"] or len(drawn) == request["most"]:
            break
        model.eval([token])
    return {
        "ids": drawn,
        "prompt_s": computed - began,
        "rest_s": time.process_time() - computed,
    }


if __name__ == "__main__":
    main()
