"""Reverse mode: nodes, what they save, the engine that runs them, and the levels that record."""
