"""The console: a page at `/` that chats, and shows the pipeline to those who look after it.

In reading order: `site_files` serves the page and what belongs to it, with its policy; `fleet_picture`,
`request_list` and `latency_picture` say what it shows, and `console_pages` to whom.
"""
