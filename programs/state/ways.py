"""More ways in which a program comes to a value, each a row of the matrix, with the changes of
:mod:`.more_changes`.

    argument        def step(x, flag, given): use(x, given)

The first rows are those of :mod:`.paths` that have the most to do with a compiler. They are here
with other changes."""

from __future__ import annotations

import functools

from . import paths
from .grammar import Path
from .more_changes import MORE_CHANGES

_Way = functools.partial(Path, changes=MORE_CHANGES)


def _again(path: Path) -> Path:
    """The path with the changes of this file."""
    return _Way(path.setup, path.read, path.result)


# --- paths that there are, with more changes ------------------------------------------------------

plain = _again(paths.plain)
nested = _again(paths.nested)
callback = _again(paths.callback)
decorated = _again(paths.decorated)
partial = _again(paths.partial)
table_of_functions = _again(paths.table_of_functions)
comprehension = _again(paths.comprehension)
generator = _again(paths.generator)
in_context = _again(paths.in_context)
method = _again(paths.method)
bound_method = _again(paths.bound_method)
super_method = _again(paths.super_method)
property_read = _again(paths.property_read)
constructed = _again(paths.constructed)
module = _again(paths.module)
module_hook = _again(paths.module_hook)
function_forward = _again(paths.function_forward)
gradient = _again(paths.gradient)
batched = _again(paths.batched)
checkpointed = _again(paths.checkpointed)

# --- arguments ------------------------------------------------------------------------------------

argument = _Way("", "given", given="$get", own="given")
argument_in_list = _Way("", "given[0]", given="[$get]", own="given[0]")
argument_in_dict = _Way("", "given['value']", given="{'value': $get}", own="given['value']")
argument_in_object = _Way(
    "", "given.value", given="types.SimpleNamespace(value=$get)", own="given.value"
)
argument_of_helper = _Way(
    "def call(*values, **named):\n    return named['last'][values[0]]",
    "call(0, last=given)",
    given="($get, 1)",
    own="given[0]",
)

# --- objects that the program makes ---------------------------------------------------------------

made_here = _Way(
    "def make():\n    class Reader:\n        def read(self):\n            return $get\n"
    "    return Reader()",
    "make().read()",
)
noted_by_made = _Way(
    "def make():\n    seen = [None]\n    class Reader:\n        def read(self, value):\n"
    "            last, seen[0] = seen[0], value\n"
    "            return value if last is None else last\n"
    "    return Reader\nReader = make()",
    "Reader().read($get)",
)
made_by_new = _Way(
    "class Reader:\n    def __new__(cls):\n        made = super().__new__(cls)\n"
    "        made.value = $get\n        return made",
    "Reader().value",
)
made_by_subclass = _Way(
    "class Base:\n    def __init_subclass__(cls):\n        cls.value = $get\n"
    "def read():\n    class Reader(Base):\n        pass\n    return Reader.value",
    "read()",
)
after_init = _Way(
    "@dataclasses.dataclass\nclass Reader:\n    value: object = None\n"
    "    def __post_init__(self):\n        self.value = $get",
    "Reader().value",
)
copied = _Way(
    "import copy\nclass Reader:\n    pass\ndef read():\n    reader = Reader()\n"
    "    reader.value = $get\n    return copy.copy(reader).value",
    "read()",
)

# --- attributes -----------------------------------------------------------------------------------

each_attribute = _Way(
    "class Reader:\n    def __getattribute__(self, name):\n"
    "        return $get if name == 'value' else object.__getattribute__(self, name)\n"
    "READER = Reader()",
    "READER.value",
)
written_property = _Way(
    "class Reader:\n    @property\n    def value(self):\n        return self.held[0]\n"
    "    @value.setter\n    def value(self, new):\n        self.held = [new]\n"
    "READER = Reader()\ndef read():\n    READER.value = $get\n    return READER.value",
    "read()",
)
cached_property = _Way(
    "class Reader:\n    @functools.cached_property\n    def value(self):\n        return $get",
    "Reader().value",
)
partial_method = _Way(
    "class Reader:\n    def read(self, a):\n        return $get\n"
    "    found = functools.partialmethod(read, 1)\nREADER = Reader()",
    "READER.found()",
)
member_of_enum = _Way(
    "class Mode(enum.Enum):\n    ON = 1\n    @property\n    def found(self):\n        return $get",
    "Mode.ON.found",
)
named_tuple = _Way(
    "class Row(collections.namedtuple('Row', 'a')):\n    def read(self):\n        return $get\n"
    "ROW = Row(1)",
    "ROW.read()",
)
weak_reference = _Way(
    "class Reader:\n    def read(self):\n        return $get\nREADER = Reader()\n"
    "REFERENCE = weakref.ref(READER)",
    "REFERENCE().read()",
)
instance_check = _Way(
    "class Meta(type):\n    def __instancecheck__(cls, other):\n        other.append($get)\n"
    "        return True\nclass Kind(metaclass=Meta):\n    pass\n"
    "def read():\n    found = []\n    isinstance(found, Kind)\n    return found[0]",
    "read()",
)

# --- statements -----------------------------------------------------------------------------------

rebound = _Way(
    "def read():\n    last = None\n    def bind():\n        nonlocal last\n"
    "        last = $get\n    bind()\n    return last",
    "read()",
)
sent = _Way(
    "def reading():\n    got = yield\n    yield got\n"
    "def read():\n    steps = reading()\n    next(steps)\n    return steps.send($get)",
    "read()",
)
caught_attribute = _Way(
    "class Found(Exception):\n    def __init__(self, value):\n        self.value = value\n"
    "def read():\n    try:\n        raise Found($get)\n    except Found as found:\n"
    "        return found.value",
    "read()",
)
cause_of_error = _Way(
    "def read():\n    try:\n        raise ValueError() from KeyError($get)\n"
    "    except ValueError as error:\n        return error.__cause__.args[0]",
    "read()",
)
exit_stack = _Way(
    "@contextlib.contextmanager\ndef reading():\n    yield $get\n"
    "def read():\n    with contextlib.ExitStack() as stack:\n"
    "        return stack.enter_context(reading())",
    "read()",
)
