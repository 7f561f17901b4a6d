"""Makes room on the stack of Python frames, for programs that run under many levels.

CPython has its frames in chunks of 16 KB. A call that does not fit into the newest chunk gets
another one from the operating system, which takes it back when the call returns. Under several
transforms an op is run some thirty frames deep. So at an unlucky depth every op gets and returns a
chunk, which took a fifth of the time of a capture. A frame that asks for much gets a large chunk,
and the calls above it find room there.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
# pointers that the frame asks for. The size of a chunk is a power of two, so as many are left
# for other frames
_SLOTS = 1 << 15


def with_room(function: Callable[P, T]) -> Callable[P, T]:
    """Return ``function``, called from a frame that makes room for some thousand more."""

    # the code object of this frame says that it needs a large stack
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    call.__code__ = call.__code__.replace(co_stacksize=_SLOTS)
    return wraps(function)(call)
