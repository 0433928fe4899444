"""Stacks that a measurement starts itself.

commit_tree  the code of another commit, with its kernels
own_stack    a whole stack, started as `penstock up` starts it, and stopped again
"""
