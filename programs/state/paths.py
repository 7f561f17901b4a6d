"""How a program comes to a value: each a row of the matrix.

    super_method        class Reader(Base): def read(self): return super().read()

A path is text with ``$get``, which finds the value in its place (:mod:`.holders`). ``read`` is an
expression for the value. A path that computes the result itself says it by ``result``."""

from __future__ import annotations

from .grammar import Path

_READ = "def read():\n    return $get"
_METHOD = "class Reader:\n    def read(self):\n        return $get\nREADER = Reader()"
_LAYER = "class Net(nn.Module):\n    def forward(self, x):\n        return use(x, $get)\n"
_LEAF = "def gradient(f, x):\n    leaf = x.detach().requires_grad_()\n"
_LEAF += "    return torch.autograd.grad(f(leaf).sum(), leaf)[0]\n"
_FORWARD = "    @staticmethod\n    def forward(ctx, x):\n"
_BACKWARD = "    @staticmethod\n    def backward(ctx, g):\n"
_RESULT = "def compute(x):\n    return use(x, $get)\n"

# --- functions ------------------------------------------------------------------------------------

plain = Path("", "$get")
nested = Path(_READ, "read()")
nested_twice = Path(
    f"{_READ}\ndef call():\n    def inner():\n        return read()\n    return inner()", "call()"
)
anonymous = Path("READ = lambda: $get", "READ()")
callback = Path(f"{_READ}\ndef call(f):\n    return f()", "call(read)")
passed_on = Path("def call(value):\n    return value", "call(call($get))")
starred = Path("def call(*args, **named):\n    return named['last']", "call(1, last=$get)")
default_function = Path(f"{_READ}\ndef call(f=read):\n    return f()", "call()")
returned = Path("def make():\n    def read():\n        return $get\n    return read", "make()()")
decorated = Path(
    "def same(f):\n    @functools.wraps(f)\n    def run(*args):\n        return f(*args)\n"
    f"    return run\n@same\n{_READ}",
    "read()",
)
decorated_by_torch = Path(f"@torch.no_grad()\n{_READ}", "read()")
partial = Path("def read(a, b):\n    return $get\nREAD = functools.partial(read, 1)", "READ(2)")
cached = Path(f"@functools.lru_cache\n{_READ}", "read()")
dispatched = Path("@functools.singledispatch\ndef read(x):\n    return $get", "read(x)")
recursive = Path("def read(n):\n    return $get if n == 0 else read(n - 1)", "read(3)")
table_of_functions = Path(f"{_READ}\nTABLE = {{'read': read}}", "TABLE['re' + 'ad']()")
list_of_functions = Path(f"{_READ}\nLIST = [len, read]", "[f for f in LIST][-1]()")
evaluated = Path(_READ, "eval('f()', {'f': read})")
coroutine = Path(
    "async def read():\n    return $get\ndef run(c):\n    try:\n        c.send(None)\n"
    "    except StopIteration as end:\n        return end.value",
    "run(read())",
)

# --- expressions and statements -------------------------------------------------------------------

comprehension = Path("", "[$get for _ in (0,)][0]")
dict_comprehension = Path("", "{n: $get for n in ('a',)}['a']")
generator_expression = Path("", "next($get for _ in (0,))")
generator = Path("def read():\n    for _ in range(2):\n        yield $get", "[*read()][-1]")
delegated = Path("def read():\n    yield $get\ndef call():\n    yield from read()", "[*call()][0]")
mapped = Path("", "[*map(lambda _: $get, (0,))][0]")
reduced = Path("", "functools.reduce(lambda a, b: $get, (0, 1))")
sorting_key = Path(
    "def call():\n    found = []\n    sorted([1], key=lambda n: found.append($get) or 0)\n"
    "    return found[0]",
    "call()",
)
conditional = Path("YES = [True]", "($get if YES[0] else 0.25)")
matched = Path(
    "def read():\n    match [$get, 1]:\n        case [value, 1]:\n            return value",
    "read()",
)
assigned_in_expression = Path("", "[value := $get, value][1]")
unpacked = Path("def read():\n    value, *_ = [$get, 1, 2]\n    return value", "read()")
raised = Path(
    "class Found(Exception):\n    pass\ndef read():\n    try:\n        raise Found($get)\n"
    "    except Found as found:\n        return found.args[0]",
    "read()",
)
in_finally = Path(
    "def read():\n    try:\n        value = None\n    finally:\n        value = $get\n"
    "    return value",
    "read()",
)
in_context = Path(
    "@contextlib.contextmanager\ndef reading():\n    yield $get\n"
    "def read():\n    with reading() as value:\n        return value",
    "read()",
)

# --- objects --------------------------------------------------------------------------------------

method = Path(_METHOD, "READER.read()")
bound_method = Path(f"{_METHOD}\nREAD = READER.read", "READ()")
class_method = Path(
    "class Reader:\n    @classmethod\n    def read(cls):\n        return $get", "Reader.read()"
)
static_method = Path(
    "class Reader:\n    @staticmethod\n    def read():\n        return $get", "Reader.read()"
)
super_method = Path(
    "class Base:\n    def read(self):\n        return $get\nclass Reader(Base):\n"
    "    def read(self):\n        return super().read()\nREADER = Reader()",
    "READER.read()",
)
super_property = Path(
    "class Base:\n    @property\n    def value(self):\n        return $get\nclass Reader(Base):\n"
    "    @property\n    def value(self):\n        return super().value\nREADER = Reader()",
    "READER.value",
)
property_read = Path(
    "class Reader:\n    @property\n    def value(self):\n        return $get\nREADER = Reader()",
    "READER.value",
)
constructed = Path(
    "class Reader:\n    def __init__(self):\n        self.value = $get", "Reader().value"
)
default_factory = Path(
    "@dataclasses.dataclass\nclass Reader:\n"
    "    value: object = dataclasses.field(default_factory=lambda: $get)",
    "Reader().value",
)
class_body = Path(
    "def read():\n    class Reader:\n        value = $get\n    return Reader.value", "read()"
)
computed_name = Path(_METHOD, "getattr(READER, 're' + 'ad')()")
by_vars = Path(_METHOD, "vars(Reader)['read'](READER)")
attrgetter = Path(f"{_METHOD}\nFOUND = operator.attrgetter('read')", "FOUND(READER)()")
methodcaller = Path(f"{_METHOD}\nCALL = operator.methodcaller('read')", "CALL(READER)")
called_object = Path(
    "class Reader:\n    def __call__(self):\n        return $get\nREADER = Reader()", "READER()"
)
missing_attribute = Path(
    "class Reader:\n    def __getattr__(self, name):\n        return $get\nREADER = Reader()",
    "READER.value",
)
indexed = Path(
    "class Reader:\n    def __getitem__(self, i):\n        return $get\nREADER = Reader()",
    "READER[0]",
)
iterated = Path(
    "class Reader:\n    def __iter__(self):\n        yield $get\nREADER = Reader()", "[*READER][0]"
)
operated = Path(
    "class Reader:\n    def __matmul__(self, other):\n        return $get\nREADER = Reader()",
    "(READER @ 1)",
)
entered = Path(
    "class Reader:\n    def __enter__(self):\n        return $get\n"
    "    def __exit__(self, *error):\n        pass\n"
    "def read():\n    with Reader() as value:\n        return value",
    "read()",
)
described = Path(
    "class Field:\n    def __get__(self, owner, kind):\n        return $get\n"
    "class Reader:\n    value = Field()\nREADER = Reader()",
    "READER.value",
)
metaclass_property = Path(
    "class Meta(type):\n    @property\n    def value(cls):\n        return $get\n"
    "class Reader(metaclass=Meta):\n    pass",
    "Reader.value",
)

# --- torch ----------------------------------------------------------------------------------------

module = Path(f"{_LAYER}NET = Net()", result="NET(x)")
module_by_index = Path(f"{_LAYER}NET = nn.Sequential(nn.Identity(), Net())", result="NET(x)")
modules_in_turn = Path(
    f"{_LAYER}NETS = nn.ModuleList([Net(), nn.Identity()])\ndef run(x):\n    for net in NETS:\n"
    "        x = net(x)\n    return x",
    result="run(x)",
)
module_hook = Path(
    "NET = nn.Identity()\nNET.register_forward_hook(lambda m, args, y: use(y, $get))",
    result="NET(x)",
)
module_pre_hook = Path(
    "NET = nn.Identity()\nNET.register_forward_pre_hook(lambda m, args: (use(args[0], $get),))",
    result="NET(x)",
)
function_forward = Path(
    f"class Used(torch.autograd.Function):\n{_FORWARD}        return use(x, $get)\n"
    f"{_BACKWARD}        return g\n",
    result="Used.apply(x)",
)
function_backward = Path(
    f"{_LEAF}class Used(torch.autograd.Function):\n{_FORWARD}        return x * 2\n"
    f"{_BACKWARD}        return use(g, $get)\n",
    result="gradient(Used.apply, x)",
)
tensor_hook = Path(
    f"{_LEAF}def hooked(x):\n    y = x * 2\n    y.register_hook(lambda g: use(g, $get))\n"
    "    return y",
    result="gradient(hooked, x)",
)
gradient = Path(f"{_LEAF}{_RESULT}", result="gradient(lambda x: compute(x) * x, x)")
transformed = Path(
    _RESULT, result="torch.func.grad(lambda x: (compute(x) * x).to(x.dtype).sum())(x)"
)
batched = Path(_RESULT, result="torch.func.vmap(compute)(x)")
tangent = Path(_RESULT, result="torch.func.jvp(lambda x: compute(x) * x, (x,), (x,))[1]")
checkpointed = Path(
    _RESULT, result="torch.utils.checkpoint.checkpoint(compute, x, use_reentrant=False)"
)
functional_call = Path(f"{_LAYER}NET = Net()", result="torch.func.functional_call(NET, {}, (x,))")
training_step = Path(
    "WEIGHT = nn.Parameter(torch.ones(1))\nOPTIMIZER = torch.optim.SGD([WEIGHT], lr=0.125)\n"
    "def train(x):\n    OPTIMIZER.zero_grad()\n    (use(x, $get) * WEIGHT).real.sum().backward()\n"
    "    OPTIMIZER.step()\n    return WEIGHT.detach().clone()",
    result="train(x)",
)
