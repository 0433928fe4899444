"""Read a client's request: every field is checked, and nothing of the fleet is known yet.

In reading order: `request` is the whole of it, frozen; `sampling`, `choices`, `cache_use` and
`retrieval_use` are its parts; `chat_prompt` reads a conversation, of whose JSON `json_parts` counts the parts
first, `tool_use`, `tool_grammar` and `tool_calls` its tools, `prompt_passages` what retrieval adds,
and `trimming_use` what may be left out;
`fallback_use` is what it says of other models, and `model_choice` which one was taken and why
(`hardness`: what a classifier says of the question);
`thinking_use` is how its model may think;
`agent_hints` are what a client knows of the agent that it calls for;
`resume_use` and `resume_token` let another gateway go on with its stream, which `resume_count` counts;
`prompt_limits` says how large a request may be on this bus.
"""
