"""Show answers, passages and tables on a terminal or in a pipe.

table              columns of text
terminal_text      text of others, which no terminal is to obey
live_text          lines that are redrawn in place
terminal_markdown  Markdown as escape sequences
markdown_view      an answer's Markdown while it comes
passage_view       the passages of an answer
citation_view      what supports its sentences
degraded_words     what it went without
trimmed_words      what was left out of its prompt
timeline_table     the phases of a request
reasoning_view     what a model thinks before it answers
request_words      where the time of a request went, in words
answer_output      an answer on the terminal or as JSON lines
"""
