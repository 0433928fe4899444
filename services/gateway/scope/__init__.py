"""The state of one running request: its deadlines, its tokens, its end.

In reading order: `session_state` and the `token_log` in it, `prompt_logprobs_buffer` for what is told of
the prompt, `text_row` as text arrives, `response_buffer` where it waits for the client and `deliveries` as
it has it, `arrival`,
`call_identity`, `budget` and `request_timeline`, `answer_confidence` and `answer_usefulness`, `outcome` as
it ends,
`request_record` of that, `report` and `live_counts` for operators, `recent_latencies` for those who look at
the console.
"""
