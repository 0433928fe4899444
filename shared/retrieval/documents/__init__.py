"""Read the files of a corpus as passages.

metadata      what documents say of themselves, and of their place
document      a file's text with its metadata
passages      a text cut into passages
front_matter  what Markdown files say above their text
html_text     the text of a page
pdf_text      the text of a PDF
formats       which files can be read, and by what
corpus        which files count
watch         whether a folder has changed
seen_files    what the files were when they were read
"""
