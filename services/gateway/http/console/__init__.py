"""The console: a page at `/` that chats, and shows the pipeline to those who look after it.

In reading order: `page_bundle` puts a page into one document, `site_files` serves it with its policy;
`gateway_reports` asks all gateways, `fleet_picture`, `request_list` and `latency_picture` say what it shows,
each made once for many by a `kept_value`, and `console_pages` to whom.
"""
