"""Commands that work on this machine and need no fleet.

index_progress  how far an indexing is, as a line
index_rounds    an indexing, round by round
index           the index of a folder
distill         a draft model for a target
bench_engine    the engine measured in this process
bench           what can be measured
"""
