"""Plain rows of streaming answers, written to their clients without Python.

In reading order: `row_terms` is what the parts of a request say of its rows, `row_sink` where they are
written; `plain_stream` is both for one stream; `stream_table` takes whole messages of text, by the extension
`_rows`, which `native/` has the C++ of. Without that, and for all rows that are not plain, Python's way is
the only one, and what it does is what the table does.
"""
