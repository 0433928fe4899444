"""Lessons for the adapter that answers from passages: invented pages, books, refusals, chats."""
