"""The runtime beside its peers, in one process: ratios of medians, never absolute times."""
