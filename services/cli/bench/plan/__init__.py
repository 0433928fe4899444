"""The plan of a load: what is asked, when, and how its clients behave; the same again for the same seed.

prose          text that reads as text, of any length
prompt_writer  a text of so many tokens, named by a key: equal keys are equal texts
lengths        a number of tokens, or a range that it is drawn from
conduct        clients that are not well-behaved or ask for what is slow, and their shares
slow_schema    a JSON schema that a server has to work on
dialogue       turns of one conversation, and helpers beside them; a single request is one turn
input_lines    lines of a file that may be anything
synthetic      dialogues of one turn, of lengths that are drawn
mooncake       the trace of Mooncake: lengths, times, and which blocks of prompts are equal
azure          Azure's traces of inference: lengths and times
agent_threads  which recorded calls follow each other, and which run beside others
agents         sessions of coding agents, as AgentX replays them
tracelab       TraceLab's sessions of coding agents: prefixes, additions and waits
conversations  files of conversations and of prompts
mix            several of these by weight, and who misbehaves
arrivals       when requests come that nobody waits for
"""
