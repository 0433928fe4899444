"""The tokenizer service: text and chats to token ids and block hashes."""
