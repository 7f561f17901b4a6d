"""Draw results: an HTML page, JUnit XML and JSON.

``view`` makes the page, of ``findings`` and the data of the ``grid``; ``templates/report`` has its
markup, style sheets and scripts. ``runs`` sets several runs side by side and one after another,
``exports`` writes for other programs. The package imports ``run.results``. Start with ``view.py``.
"""
