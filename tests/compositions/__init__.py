"""Compositions of ops, for rules of the runtime that no single op of the matrix runs."""
