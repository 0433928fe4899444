"""The forward pass in torch operations: the reference for every other backend."""
