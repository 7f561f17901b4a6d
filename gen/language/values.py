"""Values of arguments that YAML has no form for, as tags.

    args: [{shape: [4, 8]}, !tuple [2, 3], !slice [1, null, 2], !dtype float64]

A tag with its content is a mapping with one key in the data of a matrix: ``{"!tuple": [2, 3]}``.
So it passes through the generated text as plain data, and :mod:`gen.samples.descriptions` makes the
value of it at run time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from gen.dtypes import DTYPES

FILES = (".pt", ".npy")
"""What the name of a tensor's file ends with: written by ``torch.save`` or ``numpy.save``."""


class Tag(NamedTuple):
    """The content that may follow a tag."""

    # Whether the content is a list.
    takes_list: bool
    # An example of the content, for messages.
    expected: str
    # Returns whether the content is right, in a matrix in this folder.
    holds: Callable[[Any, Path], bool]
    # Makes the content of a scalar from its text.
    read: Callable[[str], object] = str


def tag_of(value: object) -> str | None:
    """Return the tag of a value of the data, None for a plain one."""
    if not isinstance(value, dict) or len(value) != 1:
        return None
    (key,) = value
    return key if key in TAGS else None


def _number(text: str) -> object:
    """Return the number of a text of digits, and any other text as it is."""
    # 2**63 has 19 digits, and longer numbers are refused as texts.
    return int(text) if re.fullmatch(r"[0-9]{1,19}", text) else text


def _is_slice(content: Any, folder: Path) -> bool:
    """Return whether a list has what the slice of a sequence may have."""
    # not isinstance: true and false are no numbers of a slice
    are_numbers = all(part is None or type(part) is int for part in content)
    # Python makes a slice with a step of 0, and refuses to take one.
    return 1 <= len(content) <= 3 and are_numbers and content[2:] != [0]


def _is_complex(content: Any, folder: Path) -> bool:
    """Return whether Python reads the content as a complex number, with spaces or without."""
    try:
        complex(str(content).replace(" ", ""))
    except ValueError:
        return False
    return True


def _is_file(content: Any, folder: Path) -> bool:
    """Return whether the content is the name of a tensor's file below the folder."""
    path = Path(str(content))
    inside = not path.is_absolute() and ".." not in path.parts
    return inside and path.suffix in FILES and (folder / path).is_file()


TAGS: dict[str, Tag] = {
    "!tuple": Tag(True, "!tuple [2, 3]", lambda content, folder: True),
    "!slice": Tag(True, "!slice [1, null, 2], at most three whole numbers or null", _is_slice),
    "!dtype": Tag(False, "!dtype float64", lambda content, folder: content in DTYPES),
    "!device": Tag(
        False,
        "!device cuda:0",
        lambda content, folder: bool(re.fullmatch(r"[a-z]+(:\d+)?", str(content))),
    ),
    "!complex": Tag(False, "!complex 1+2j", _is_complex),
    "!generator": Tag(
        False,
        "!generator 7, the seed of a torch.Generator",
        lambda content, folder: type(content) is int and content < 2**63,
        read=_number,
    ),
    "!file": Tag(
        False,
        f"!file data/weights.pt, a file ({' or '.join(FILES)}) below the folder of the matrix",
        _is_file,
    ),
}
