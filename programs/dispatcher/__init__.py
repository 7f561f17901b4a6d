"""Call the overloads of torch's dispatcher that no function of a row calls, beside definitions.

A program takes and returns tensors. The function whose name ends in ``_by_definition`` computes
the same in plain terms: dense tensors, loops, formulas. The package imports torch alone. Start with
``windows.py``.
"""
