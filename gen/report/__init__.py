"""Draw results: an HTML page, JUnit XML and JSON.

``view`` makes the page, ``runs`` sets several runs beside and after one another, ``exports`` writes
for other programs. The package imports ``run.results``. Start with ``view.py``.
"""
