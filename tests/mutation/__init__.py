"""Mutation testing: change one place of the source, and see whether a test fails. docs/mutation.md says how to use it.

`mutants` finds the places where a file can be changed, `lines` learns which tests run which lines, `trial` runs the tests of one
mutant in a copy of the tree, and `__main__` draws the mutants and counts.
"""
