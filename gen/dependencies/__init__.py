"""Know which cells a change can affect: what a cell has run and read, and what a commit changed.

``process_trace`` notes what the process of a cell does. ``source_units`` divides a file into the
units that are compared. ``revision`` asks git for the files of a commit. ``cell_record`` keeps what
each cell depends on, and says what of it is out of date. The package imports ``files``. Start with
``cell_record.py``.
"""
