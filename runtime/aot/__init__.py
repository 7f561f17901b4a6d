"""Ahead-of-time: programs captured as graphs, differentiated, cut in two, replayed and exported."""

from .trace import make_fx

__all__ = ["make_fx"]
