"""The programs of the reports, a file for each topic."""
