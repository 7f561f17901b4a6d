"""The runtime beside its peers, in one process: ratios of medians, never absolute times."""

import os

# read when torch is imported: the profiler writes to stderr each time it starts
os.environ.setdefault("KINETO_LOG_LEVEL", "9")
