"""Compare texts by models: vectors and rerankers.

vectors           what texts become to be compared
model_files       where the embedding model's files are, and that they are whole
bert              encoders of checkpoints, in torch
packed_encoders   their weights, in files that processes share
text_encoder      an encoder over many texts, on the engine's kernels where they run
embedder          texts as vectors
question_vectors  vectors of questions, kept
fusion            several rankings as one
rerank            passages in a better order, within a deadline: the seam
cross_encoder     a reranker that reads question and passage together
passage_probability  how likely it is that a passage answers
late_interaction  a reranker that compares token by token
"""
