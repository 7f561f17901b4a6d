"""Graphs for others: flat ones with a signature, and torch's ``ExportedProgram``."""
