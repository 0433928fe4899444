"""Train a draft head: a small network that drafts for one target from the target's own hidden states.

head_distillation `penstock distill --kind head`, from the target to a head that says what it gains
head_shape      how large a head is, and which layers of the target it looks at
draft_head      the head, and what it is before it has learned
target_taps     the target's hidden states at its answers, in files
head_trainer    a step of training
head_files      the directory of a head
head_acceptance how often a head is right, and whether it knows
head_worth      what that gains, where confidence chooses the number of drafts
head_card       the README of a head
"""
