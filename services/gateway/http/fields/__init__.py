"""JSON of a request, read field by field into the gRPC contract.

In reading order: `json_body` makes an object of bytes, `json_fields` reads its values, `sampling_fields` and
`chat_tools` what OpenAI names, `thinking_fields` how long a model may think, `agent_fields` what agents'
clients say of themselves, `penstock_options` and `penstock_part` what only Penstock has.
"""
