"""Read the files of a corpus as passages.

metadata         what documents say of themselves, and of their place
passages         a text cut into passages
document         a file's text with its metadata
text_files       the text of a file, in its encoding
front_matter     what Markdown files say above their text
html_text        the text of a page
pdf_text         the text of a PDF
formats          which files can be read, and by what
jsonl            files whose lines are documents
document_jobs    the process in which files are read, within limits
document_reader  its other end
corpus           which files count
watch            whether a folder has changed
seen_files       what the files were when they were read
"""
