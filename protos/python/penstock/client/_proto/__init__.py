"""The generated code of the contract; `make protos` writes it."""
