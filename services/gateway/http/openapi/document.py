"""Put the document together: a path for each route, with its body, its answers and who may ask."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from services.gateway.http.completions.error_object import STATUSES
from services.gateway.http.openapi.answer_schemas import answer_schemas
from services.gateway.http.openapi.body_schemas import body_schemas
from services.gateway.http.openapi.operation import EVENTS, JSON, Access, Operation
from services.gateway.http.openapi.schema_parts import Schema, ref, text
from shared.messages import MAX_CORPUS_CHARS
from shared.telemetry.build import VERSION

OPENAPI_VERSION = "3.1.0"
PATH_NAME = re.compile(r"\{(\w+)\}")
MAX_SHOWN_NAME_CHARS = 80
BEARER = "apiKey"

DescribedRoute = tuple[str, str, Operation]
"""The method, the path with its names in braces, and what the route says of itself."""


def openapi_document(
    routes: Iterable[DescribedRoute], *, needs_keys: bool, max_body_bytes: int
) -> dict[str, Any]:
    """`needs_keys`: there are API keys; without, anybody may ask for all of it."""
    paths: dict[str, dict[str, Any]] = {}
    seen: set[str] = set()
    for method, path, operation in routes:
        described = _operation(path, operation, needs_keys=needs_keys, first=operation.id not in seen)
        seen.add(operation.id)
        paths.setdefault(path, {})[method.lower()] = described
    return {
        "openapi": OPENAPI_VERSION,
        "info": {
            "title": "Penstock",
            "version": VERSION,
            "description": f"A body has at most {max_body_bytes} bytes and is JSON. A field that is null is "
            "absent. Every refusal is an Error object that says what is wrong and what to do.",
        },
        "paths": paths,
        "components": {
            "schemas": {**body_schemas(), **answer_schemas()},
            "securitySchemes": {BEARER: {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(path: str, operation: Operation, *, needs_keys: bool, first: bool) -> dict[str, Any]:
    """`first`: no other path has this operation; ids are of one path each."""
    made: dict[str, Any] = {
        "operationId": operation.id if first else operation.id + re.sub(r"\W+", "-", path),
        "summary": operation.summary,
        "tags": [operation.tag],
        "x-penstock-access": operation.access.value,
        "responses": _responses(operation),
    }
    names = PATH_NAME.findall(path)
    if names:
        made["parameters"] = [_path_parameter(name) for name in names]
    if operation.body:
        made["requestBody"] = {"required": True, "content": {JSON: {"schema": ref(operation.body)}}}
    if needs_keys and operation.access is not Access.ANYBODY:
        made["security"] = [{BEARER: []}]
    return made


def _path_parameter(name: str) -> dict[str, Any]:
    schema: Schema = text(least=1, most=MAX_CORPUS_CHARS if name == "corpus" else None)
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _responses(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = {operation.answer_type: {}}
    if operation.answer:
        content[operation.answer_type] = {"schema": ref(operation.answer)}
    if operation.streams:
        content[EVENTS] = {"schema": {"type": "string"}}
    statuses = {*operation.statuses, 403, 429}
    if operation.access is not Access.ANYBODY:
        statuses.add(401)
    refusals = {str(status): _refusal(status, operation) for status in sorted(statuses)}
    return {"200": {"description": operation.summary, "content": content}, **refusals}


def _refusal(status: int, operation: Operation) -> dict[str, Any]:
    if operation.access is Access.ANYBODY and status == 503:  # as a balancer reads it
        return {"description": "not ready", "content": {operation.answer_type: {}}}
    return {"description": STATUSES[status], "content": {JSON: {"schema": ref("Error")}}}
