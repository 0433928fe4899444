"""Run a process for each instance, and keep it running.

backoff       how long is waited before one that ended starts again
child         one process that cannot outlive the launcher
fork_server   a process that has imported what all need, and forks services off
early_server  the first one, forked off the launcher
forker        its other end, in the launcher
log_lines     what all of them say, in whole lines
instance      one service instance: its process, its restarts, its end
"""
