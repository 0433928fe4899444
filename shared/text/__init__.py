"""Text in and out: model directories, tokenizers, chat templates, incremental decoding, stop strings."""
