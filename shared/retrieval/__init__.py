"""A folder of documents as passages that can be found by meaning and by words.

corpus         which files count
passages       a file cut into passages
metadata       what documents say of themselves, and of their place
front_matter   what Markdown files say above their text
metadata_masks passages that filters let through
named_corpus   how the corpora of a retriever are said
words          a text as terms, in any script
vectors        what texts become to be compared
model_files    where the embedding model's files are, and that they are whole
bert           encoders of checkpoints; what they compute in torch
text_encoder   an encoder over many texts, on the engine's kernels where they run
embedder       texts → vectors (all-MiniLM-L6-v2)
question_vectors   those of questions, kept
term_counts    how often each term is in each passage
lexical        passages searched by their terms
nearest        vectors searched: all compared, or a part of them
byte_strings   many byte strings as mapped files
file_records   what an index has of its documents
passage_table  the passages of an index, in its order
index          passages, vectors and terms, searched
fusion         what words and what meaning has found, as one ranking
rerank         passages in a better order, within a deadline: the seam
cross_encoder  a reranker of a Hugging Face directory
durable        files that are there whole or not at all
manifest       which generation of an index counts, and what made it
store          the index on disk: generations
seen_files     what the files of a corpus were when they were read
reading        a corpus as it is now, of which only what has changed is read
change         from one state of an index to the next
unfinished     what an indexing that was interrupted has got already
build          the folder's index, new or brought up to date
"""
