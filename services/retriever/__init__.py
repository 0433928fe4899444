"""The retriever: passages of an indexed folder that fit a question."""
