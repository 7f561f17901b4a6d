"""Errors compared with torch's: by their type and by the first sentence of their text.

That sentence names the fault, and is what programs match on. What follows it is advice, which each
library gives in its own words."""

import re

_END = re.compile(r"\.(?=\s|$|[A-Z][a-z]* )|\n")  # torch leaves out the space after some full stops


def first_sentence(text: str) -> str:
    """Up to a full stop or the end of the line; a dot within a name or a number ends nothing."""
    return " ".join(_END.split(text.strip(), maxsplit=1)[0].split())


def told(error: BaseException) -> tuple[str, str]:
    """The name of the error's type, and the fault."""
    return type(error).__name__, first_sentence(str(error))
