"""`gen report`: results files -> an HTML page, and JUnit XML and JSON for other programs."""

from gen.report.command import add_arguments, run

__all__ = ["add_arguments", "run"]
