"""Know which cells a change can affect: what a cell has run and read, and what a commit changed.

``process_trace`` notes what the process of a cell does. ``source_units`` divides a file into the
units that are compared, and ``cell_definition`` does so with the row of a cell. ``revision`` asks
git for the files of a commit. ``record`` keeps what each cell depends on, and says what of it is
out of date. The package imports ``checks``. Start with ``record.py``.
"""
