"""Read and validate what matrix.yaml says.

``source`` reads YAML files by ``yaml_text`` and keeps the place of every value. ``validate`` checks
it against the models of ``spec``: ``op_specs`` and ``sample_specs`` have the rows, ``check_specs``
the columns and ``selection_specs`` what chooses among their cells; ``texts`` explains values.
``pipeline`` reads ``vmap . vjp``, ``axes`` has the axes of a cell and the words of its id,
``globs`` matches names. The package imports ``errors`` and ``versions`` alone, and no torch. Start
with ``spec.py``.
"""
