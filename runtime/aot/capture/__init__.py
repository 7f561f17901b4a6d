"""A program as a joint graph, with a record of what it does at its boundary."""
