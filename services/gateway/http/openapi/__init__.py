"""`/openapi.json`: the HTTP interface described from the code that reads bodies and from its limits.

In reading order: `operation` is what a route says of itself and `schema_parts` what schemas are made of;
`sampling_schemas`, `body_schemas` and `answer_schemas` have them by name; `operations` are those of the
routes, `document` puts them together.
"""
