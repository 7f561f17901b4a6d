"""Wrong answers of torch, each a program of a few lines that computes what torch gives
and what is right.

``python -m tests.reports`` lists, prints and runs them, and writes docs/findings.md. A program is a
function in one of the files of ``programs``; `report` says what its fields are.
"""
