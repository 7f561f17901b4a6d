"""Compare what guards of jit ask for in C++, where ``python -m runtime native`` has built that.

``batches.cpp`` is the source. ``build`` compiles it into the user's cache folder. ``library`` finds
the file that was built for this torch and this Python. ``noted`` asks it, and Python where it says
no. The package imports no other module of the runtime. Start with ``noted.py``.
"""
