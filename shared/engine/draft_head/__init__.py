"""A draft head beside its target: it guesses the target's next tokens from the target's hidden states.

config       what a head says of itself, checked against the target
weights      its tensors, checked before one is read
torch_head   the head in torch operations: what every other one is held to
native_head  the head on the C++ kernels
shipped      the head that ships, for the model that ships
build        the one that goes with a backend
"""
