"""What the adapter that answers from passages is taught with: invented pages, books, refusals, chats."""
