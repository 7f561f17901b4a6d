"""Ops of a user's own, described in matrix.yaml without any Python beside the op and its scalar reference."""
