"""Look after a stack that runs.

prober         whether each process lives, by its /live
start_watch    whether what starts moves on
stopped_watch  whether a gateway on shared ports was stopped
troubles       what goes wrong beside it, told once
"""
