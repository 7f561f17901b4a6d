"""Mutation testing: change one place of the source, and find out whether a test fails.
docs/mutation.md says how to use it.

`mutants` finds the changes of a file. `lines` finds which tests run which lines. `trial` runs the
tests of one mutant in a copy of the tree. `__main__` draws the mutants and counts.
"""
