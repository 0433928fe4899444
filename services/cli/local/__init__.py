"""Commands that work on this machine and need no fleet.

kept_rows       models that are kept, as rows and objects
pull_line       how far a pull is, as a line
pull            a model that is kept from now on
list_models     all of them
show_model      what one of them is
remove_model    one of them, removed
index_progress  how far an indexing is, as a line
index_rounds    an indexing, round by round
index           the index of a folder
distill         a draft model for a target
"""
