"""Checks of pictures that a target draws, which rows of the matrix return as results.

``drawing`` takes the picture of a cut apart and has its claims. It may import only Python's own
modules, as a picture is text. Start with ``drawing.py``.
"""
