"""Draw results: an HTML page, JUnit XML and JSON.

``view`` makes the page, ``runs`` sets several runs side by side and one after another, ``exports``
writes for other programs. The package imports ``run.results``. Start with ``view.py``.
"""
