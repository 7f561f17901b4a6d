"""Cutting a joint graph into a forward and a backward: what is saved between the two, and what
is computed again."""
