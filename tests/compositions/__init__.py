"""Ops made of several, for rules of the runtime that no single op of the matrix brings to run."""
