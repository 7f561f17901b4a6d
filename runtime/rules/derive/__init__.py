"""Make records and batching rules from one line.

``families`` makes a whole record for a family of ops: pointwise, linear, a view. The other modules
have batching rules and formulas that the records of one kind share. They import ``record`` and
``ops`` alone. Start with ``batch_rules``: it explains what a batching rule is.
"""
