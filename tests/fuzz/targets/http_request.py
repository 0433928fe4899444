"""Requests to the pages of a real gateway before a real fleet, from the fields that these read."""

from __future__ import annotations

import http.client
import json
import random
from contextlib import AbstractContextManager

from tests.fuzz.fleet import opened_fleet
from tests.fuzz.mutation import mutated_bytes
from tests.fuzz.target import Fault, RunOne, Target
from tests.support.hostile_json import hostile_bodies
from tests.support.http_pages import PAGES
from tests.support.stack import Stack

ANSWER_S = 60.0
"""Beyond the deadlines of the bodies, which are seconds."""
SERVED = "penstock-demo"
CORPUS = "default"
BODIES = {
    path.replace("docs", CORPUS): json.loads(
        json.dumps(body)
        .replace('"test-model"', f'"{SERVED}"')
        .replace('"corpus": "c"', f'"corpus": "{CORPUS}"')
    )
    for path, body in PAGES.items()
}
OTHER_PATHS = ("/v1/models/%s", "/v1/requests/%s/cancel", "/v1/vector_stores/%s/search", "/%s")
NAMES = ("x", "%00", "%ff", "%ED%A0%80", "..%2f", "a" * 4000, "penstock-demo:", "?a=b")
REFUSED_OVERLOAD = (429, 503, 504)


def make(rng: random.Random) -> bytes:
    """The path, a line end, and the body."""
    path = rng.choice(sorted(BODIES))
    body = dict(BODIES[path])
    if rng.random() < 0.5:  # fewer fields at once go further
        body = {name: value for name, value in body.items() if rng.random() < 0.5 or name in REQUIRED}
    ((_, data),) = hostile_bodies(body, rng, 1)
    if rng.random() < 0.1:
        data = mutated_bytes(data, rng)
    if rng.random() < 0.05:
        path = rng.choice(OTHER_PATHS) % rng.choice(NAMES)
    return path.encode() + b"\n" + data


REQUIRED = ("messages", "prompt", "input", "query", "documents", "tokens", "max_tokens", "max_output_tokens")


def sender(stack: Stack) -> RunOne:
    address = stack.http

    def send(data: bytes) -> None:
        path, _, body = data.partition(b"\n")
        connection = http.client.HTTPConnection(address, timeout=ANSWER_S)
        try:
            connection.request("POST", path.decode("latin-1"), body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            answer = response.read()
        except (ValueError, http.client.InvalidURL):  # no client sends such a path
            return
        except (OSError, http.client.HTTPException) as error:
            raise Fault(f"no answer: {type(error).__name__} {error}") from error
        finally:
            connection.close()
        check_answer(response.status, answer)

    return send


def check_answer(status: int, answer: bytes) -> None:
    """Raise Fault for an answer that says that there is a bug, or that says nothing."""
    if status >= 500 and (status not in REFUSED_OVERLOAD or b"internal_error" in answer):
        raise Fault(f"{status}: {answer[:400]!r}")
    if b"internal_error" in answer or b"Traceback" in answer:
        raise Fault(f"{status}: {answer[:400]!r}")
    if status >= 400:
        try:
            sentence = json.loads(answer)["error"]["message"]
        except (ValueError, KeyError, TypeError) as error:
            raise Fault(f"{status} without a sentence: {answer[:200]!r}") from error
        if len(str(sentence).split()) < 3:
            raise Fault(f"{status} without a sentence: {sentence!r}")


def opened() -> AbstractContextManager[RunOne]:
    return opened_fleet(sender)


TARGET = Target("http_request", make, opened, tries=20, has_stack=True)
