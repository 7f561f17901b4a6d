"""Where a value is that a program finds: a piece of text for each place.

    attribute:   box.rate

``get`` is the expression that finds the value. ``put`` puts ``$new`` there, ``drop`` leaves
nothing. ``declare`` is what a function says first that rebinds the name."""

from __future__ import annotations

from typing import NamedTuple


class Holder(NamedTuple):
    """Text of one place. ``$start``: the first value, ``$new``: the next one."""

    setup: str
    get: str
    put: str
    drop: str
    declare: str = ""


def _attribute(setup: str, owner: str, get: str = "") -> Holder:
    """An attribute of ``owner``, found by ``get``."""
    place = f"{owner}.rate"
    return Holder(f"{setup}\n{place} = $start", get or place, f"{place} = $new", f"del {place}")


def _item(setup: str, place: str, get: str = "") -> Holder:
    return Holder(setup, get or place, f"{place} = $new", f"del {place}")


_BOX = "class Box:\n    pass\nbox = Box()"
_LAYER = "class Layer(nn.Module):\n    def forward(self, x):\n        return x"
_KEY = "class Key:\n    def __init__(self, rate):\n        self.rate = rate"

HOLDERS: dict[str, Holder] = {
    # --- variables
    "cell": Holder("rate = $start", "rate", "rate = $new", "del rate", "nonlocal rate"),
    "global": Holder("RATE = $start", "RATE", "RATE = $new", "del RATE", "global RATE"),
    "imported": Holder(
        "def settings():\n    import OTHER_MODULE\n    return OTHER_MODULE\n"
        "settings().rate = $start",
        "settings().rate",
        "settings().rate = $new",
        "del settings().rate",
    ),
    "imported_by_name": Holder(
        "NAME = 'OTHER_MODULE'\ndef settings():\n"
        "    return importlib.import_module(NAME)\nsettings().rate = $start",
        "settings().rate",
        "settings().rate = $new",
        "del settings().rate",
    ),
    "module": _attribute("settings = types.ModuleType('settings_of_program')", "settings"),
    # --- attributes
    "attribute": _attribute(_BOX, "box"),
    "chain": _attribute(f"{_BOX}\nbox.inner = Box()\nbox.inner.inner = Box()", "box.inner.inner"),
    "slot": _attribute("class Box:\n    __slots__ = ('rate',)\nbox = Box()", "box"),
    "namespace": _attribute("box = types.SimpleNamespace()", "box"),
    "dataclass": Holder(
        "@dataclasses.dataclass\nclass Box:\n    rate: object\nbox = Box($start)",
        "box.rate",
        "box.rate = $new",
        "del box.rate",
    ),
    "frozen_dataclass": Holder(
        "@dataclasses.dataclass(frozen=True)\nclass Box:\n    rate: object\nBOX = Box($start)",
        "BOX.rate",
        "BOX = dataclasses.replace(BOX, rate=$new)",
        "del BOX",
        "global BOX",
    ),
    "named_tuple": Holder(
        f"{_BOX}\nPair = collections.namedtuple('Pair', 'size rate')\nbox.pair = Pair(1.0, $start)",
        "box.pair.rate",
        "box.pair = box.pair._replace(rate=$new)",
        "box.pair = None",
    ),
    "by_computed_name": _attribute(_BOX, "box", "getattr(box, 'ra' + 'te')"),
    "by_vars": _attribute(_BOX, "box", "vars(box)['rate']"),
    "by_dict": _attribute(_BOX, "box", "box.__dict__['ra' + 'te']"),
    "by_attrgetter": _attribute(
        f"{_BOX}\nbox.inner = Box()\nFIND = operator.attrgetter('inner.rate')",
        "box.inner",
        "FIND(box)",
    ),
    "by_getattr_method": Holder(
        "class Box:\n    def __init__(self):\n        self.table = {'rate': $start}\n"
        "    def __getattr__(self, name):\n        return self.__dict__['table'][name]\n"
        "box = Box()",
        "box.rate",
        "box.table['rate'] = $new",
        "del box.table['rate']",
    ),
    "exception": Holder(
        "box = ValueError($start)", "box.args[0]", "box.args = ($new,)", "box.args = ()"
    ),
    # --- classes
    "class_attribute": _attribute("class Box:\n    pass", "Box"),
    "inherited": _attribute(
        "class Base:\n    pass\nclass Box(Base):\n    pass\nbox = Box()", "Base", "box.rate"
    ),
    "by_type": _attribute(_BOX, "Box", "type(box).rate"),
    "shadowed": _attribute("class Box:\n    rate = $start\nbox = Box()", "box"),
    "metaclass": _attribute(
        "class Meta(type):\n    pass\nclass Box(metaclass=Meta):\n    pass", "Meta", "Box.rate"
    ),
    "property": _attribute(
        "class Box:\n    @property\n    def found(self):\n        return self.rate\nbox = Box()",
        "box",
        "box.found",
    ),
    "other_property": Holder(
        "class Box:\n    pass\nbox = Box()\nBox.rate = property(functools.partial(second, $start))",
        "box.rate",
        "Box.rate = property(functools.partial(second, $new))",
        "del Box.rate",
    ),
    "cached_property": Holder(
        "class Box:\n    @functools.cached_property\n    def found(self):\n"
        "        return self.rate\nbox = Box()\nbox.rate = $start",
        "box.found",
        "box.rate = $new; vars(box).pop('found', None)",
        "del box.rate; vars(box).pop('found', None)",
    ),
    "descriptor": _attribute(
        "class Field:\n    def __get__(self, box, kind):\n        return self.rate\n"
        "field = Field()\nclass Box:\n    found = field\nbox = Box()",
        "field",
        "box.found",
    ),
    "enum": _attribute("class Mode(enum.Enum):\n    FAST = 1\n    SLOW = 2", "Mode.FAST"),
    # --- functions
    "default": Holder(
        "def held(rate=$start):\n    return rate",
        "held()",
        "held.__defaults__ = ($new,)",
        "held.__defaults__ = None",
    ),
    "keyword_default": Holder(
        "def held(*, rate=$start):\n    return rate",
        "held()",
        "held.__kwdefaults__ = {'rate': $new}",
        "held.__kwdefaults__ = None",
    ),
    "function_attribute": _attribute("def held():\n    return held.rate", "held", "held()"),
    "other_closure": Holder(
        "def made(rate):\n    return lambda: rate\nHELD = made($start)",
        "HELD()",
        "HELD = made($new)",
        "del HELD",
        "global HELD",
    ),
    "bound_method": Holder(
        f"{_KEY}\n    def held(self):\n        return self.rate\nHELD = Key($start).held",
        "HELD()",
        "HELD = Key($new).held",
        "del HELD",
        "global HELD",
    ),
    "partial": Holder(
        f"{_BOX}\nbox.held = functools.partial(first, $start)",
        "box.held()",
        "box.held = functools.partial(first, $new)",
        "del box.held",
    ),
    "partial_keywords": Holder(
        "held = functools.partial(first, value=$start)",
        "held()",
        "held.keywords['value'] = $new",
        "held.keywords.pop('value')",
    ),
    "cached_function": Holder(
        f"{_BOX}\nbox.rate = $start\n@functools.lru_cache\ndef held():\n    return box.rate",
        "held()",
        "box.rate = $new; held.cache_clear()",
        "del box.rate; held.cache_clear()",
    ),
    "generator": Holder(
        "def made(rate):\n    while True:\n        yield rate\nHELD = made($start)",
        "next(HELD)",
        "HELD = made($new)",
        "HELD = iter(())",
        "global HELD",
    ),
    # --- containers
    "list": _item("box = [0.5, $start]", "box[1]"),
    "dict": _item("box = {'size': 0.5, 'rate': $start}", "box['rate']"),
    "nested_items": _item("box = {'all': [{'rate': $start}]}", "box['all'][0]['rate']"),
    "deque": _item("box = collections.deque([$start])", "box[-1]"),
    "set": Holder(
        f"{_KEY}\nbox = {{Key($start)}}",
        "[key.rate for key in box][0]",
        "new = Key($new); box.clear(); box.add(new)",
        "box.clear()",
    ),
    "tuple": Holder("BOX = (1.0, $start)", "BOX[1]", "BOX = (2.0, $new)", "BOX = ()", "global BOX"),
    "default_dict": _item(
        "box = collections.defaultdict(lambda: 0.25)\nbox['rate'] = $start", "box['rate']"
    ),
    "ordered_dict": _item("box = collections.OrderedDict(rate=$start)", "box['rate']"),
    "chain_map": _item(
        "table = {'rate': $start}\nbox = collections.ChainMap({}, table)",
        "table['rate']",
        "box['rate']",
    ),
    "own_dict": _item(
        "class Table(dict):\n    def __getitem__(self, name):\n"
        "        return dict.__getitem__(self, name)\nbox = Table(rate=$start)",
        "box['rate']",
    ),
    "user_list": _item("box = collections.UserList([$start])", "box[0]"),
    "mapping_proxy": _item(
        "table = {'rate': $start}\nbox = types.MappingProxyType(table)",
        "table['rate']",
        "box['rate']",
    ),
    "by_itemgetter": _item(
        "box = {'rate': $start}\nFIND = operator.itemgetter('rate')", "box['rate']", "FIND(box)"
    ),
    "object_array": Holder(
        "box = np.empty(1, dtype=object)\nbox[0] = $start",
        "box[0]",
        "box[0] = $new",
        "box[0] = GONE",
    ),
    "iterable": _attribute(
        "class Box:\n    def __iter__(self):\n        yield self.rate\nbox = Box()",
        "box",
        "[*box][0]",
    ),
    # --- what refers to an object in another way
    "weak_reference": _attribute(f"{_BOX}\nBOX = weakref.ref(box)", "box", "BOX().rate"),
    "weak_dict": _attribute(
        f"{_BOX}\ntable = weakref.WeakValueDictionary(box=box)", "box", "table['box'].rate"
    ),
    "thread_local": _attribute("box = threading.local()", "box"),
    "context_variable": Holder(
        "BOX = contextvars.ContextVar('box')\nBOX.set(($start,))",
        "BOX.get()[0]",
        "BOX.set(($new,))",
        "BOX.set(())",
    ),
    # --- torch's
    "layer": _attribute(f"{_LAYER}\nnet = Layer()", "net"),
    "layer_by_index": _attribute(
        f"{_LAYER}\nnet = nn.Sequential(Layer(), Layer())", "net[1]", "net[-1].rate"
    ),
    "layer_by_name": _attribute(
        f"{_LAYER}\nnet = nn.ModuleDict(dict(last=Layer()))",
        "net['last']",
        "dict(net.named_modules())['last'].rate",
    ),
    "tensor_attribute": _attribute("box = torch.zeros(1)", "box"),
    "optimizer_group": _item(
        "optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)\n"
        "optimizer.param_groups[0]['rate'] = $start",
        "optimizer.param_groups[0]['rate']",
    ),
}
