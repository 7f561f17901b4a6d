"""Say of every overload of torch's dispatcher who calls it, or why nobody does.

``reasons.yaml`` has the reasons, ``overload_reasons.py`` finds the one of an overload.
``overload_coverage.py`` adds up what a run has noted, and ``coverage_page.py`` writes the page. The
package imports what cells note and private names of torch. Start with ``overload_coverage.py``.
"""
