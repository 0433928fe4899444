"""A JSON schema that a server has to work on before it answers: many properties, none met before."""

from __future__ import annotations

import json


def slow_schema(properties: int, mark: str) -> str:
    """Return a schema of an object with so many optional properties; `mark`, letters and digits, is in the
    name of each, so that nothing of another schema's is of use."""
    fields = {f"{mark}_{index}": {"type": "string", "maxLength": 40} for index in range(properties)}
    return json.dumps({"type": "object", "properties": fields, "additionalProperties": False})
