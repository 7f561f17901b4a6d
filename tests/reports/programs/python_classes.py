"""Classes of Python under torch.compile: methods, metaclasses, derived classes and instance checks.

The programs are compiled with `backend="eager"`, so no graph is rewritten: Dynamo, which traces
Python, is what is wrong. The right value is that of the same program without a compiler."""

import torch
from torch import nn

from tests.reports.report import report


@report("F160.1", compiled=True)
def assigned_method():
    """Compiled code calls a method that its class no longer has.

    The object and its class are the same as before, and Python looks the method up at each call.
    """

    class Scaled:
        def scale(self, x):
            return x * 2

    scaled = Scaled()
    compiled = torch.compile(lambda x: scaled.scale(x), backend="eager")
    compiled(torch.ones(()))
    Scaled.scale = lambda self, x: x * 3
    return compiled(torch.ones(())).item(), 3.0


@report("F160.2", "pytorch#197860", compiled=True)
def assigned_code_of_a_method():
    """Compiled code runs the old code of a method whose code was replaced.

    A function that is no method is looked at again, and gives 3 in the same program.
    """

    class Scaled:
        def scale(self, x):
            return x * 2

    scaled = Scaled()
    compiled = torch.compile(lambda x: scaled.scale(x), backend="eager")
    compiled(torch.ones(()))
    Scaled.scale.__code__ = (lambda self, x: x * 3).__code__
    return compiled(torch.ones(())).item(), 3.0


@report("F160.3", compiled=True, torch="<2.15")
def assigned_class_method():
    """Compiled code calls a class method that its class no longer has.

    A static method that is assigned is noticed.
    """

    class Scaled:
        @classmethod
        def scale(cls, x):
            return x * 2

    compiled = torch.compile(lambda x: Scaled.scale(x), backend="eager")
    compiled(torch.ones(()))
    Scaled.scale = classmethod(lambda cls, x: x * 3)
    return compiled(torch.ones(())).item(), 3.0


@report("F160.4", compiled=True)
def assigned_forward_of_a_class():
    """Compiled code runs the old forward of a class of modules.

    A forward that is assigned to the module itself is noticed.
    """

    class Scaled(nn.Module):
        def forward(self, x):
            return x * 2

    scaled = Scaled()
    compiled = torch.compile(lambda x: scaled(x), backend="eager")
    compiled(torch.ones(()))
    Scaled.forward = lambda self, x: x * 3
    return compiled(torch.ones(())).item(), 3.0


@report("F160.5", compiled=True)
def assigned_length():
    """Compiled code calls a __len__ that the class no longer has.

    len(x) is type(x).__len__(x), by the definition of Python.
    """

    class Sized:
        def __len__(self):
            return 2

    sized = Sized()
    compiled = torch.compile(lambda x: x * len(sized), backend="eager")
    compiled(torch.ones(()))
    Sized.__len__ = lambda self: 3
    return compiled(torch.ones(())).item(), 3.0


@report("F160.6", compiled=True)
def assigned_initializer():
    """Compiled code makes objects by an __init__ that the class no longer has.

    A class that is called runs the __init__ that it has at that time.
    """

    class Scale:
        def __init__(self):
            self.value = 2.0

    def initialize(self):
        self.value = 3.0

    compiled = torch.compile(lambda x: x * Scale().value, backend="eager")
    compiled(torch.ones(()))
    Scale.__init__ = initialize
    return compiled(torch.ones(())).item(), 3.0


@report("F161.1", compiled=True, torch="<2.15")
def attribute_that_comes_to_a_derived_class():
    """Compiled code reads the attribute of a base class when the derived class has one, too.

    Python looks in the derived class first. A write to the base class is noticed.
    """

    class Base:
        rate = 2.0

    class Derived(Base):
        pass

    derived = Derived()
    compiled = torch.compile(lambda x: x * derived.rate, backend="eager")
    compiled(torch.ones(()))
    Derived.rate = 3.0
    return compiled(torch.ones(())).item(), 3.0


@report("F161.2", compiled=True, torch="<2.15")
def method_that_comes_to_a_derived_class():
    """Compiled code calls the method of a base class when the derived class has one, too.

    Python looks in the derived class first.
    """

    class Base:
        def scale(self, x):
            return x * 2

    class Derived(Base):
        pass

    derived = Derived()
    compiled = torch.compile(lambda x: derived.scale(x), backend="eager")
    compiled(torch.ones(()))
    Derived.scale = lambda self, x: x * 3
    return compiled(torch.ones(())).item(), 3.0


@report("F162.1", compiled=True)
def class_attribute_read_through_an_object_after_a_write():
    """Compiled code writes to a class attribute, and an object of the class still has the old one.

    The object has no attribute of that name. `Box.rate` gives 3 at the same place.
    """

    class Box:
        rate = 2.0

    box = Box()

    def f(x):
        Box.rate = 3.0
        return x * box.rate

    return torch.compile(f, backend="eager")(torch.ones(())).item(), 3.0


@report("F162.2", compiled=True)
def method_called_after_a_write_to_its_class():
    """Compiled code assigns a method, and the next line calls the old one.

    The object has no attribute of that name.
    """

    class Scaled:
        def scale(self, x):
            return x * 2

    scaled = Scaled()

    def f(x):
        Scaled.scale = lambda self, x: x * 3
        return scaled.scale(x)

    return torch.compile(f, backend="eager")(torch.ones(())).item(), 3.0


@report("F163.1", compiled=True)
def attribute_of_a_metaclass():
    """Compiled code does not notice that an attribute of a metaclass changes.

    The class has no attribute of that name, so Python looks in the class of the class.
    """

    class Meta(type):
        rate = 2.0

    class Box(metaclass=Meta):
        pass

    compiled = torch.compile(lambda x: x * Box.rate, backend="eager")
    compiled(torch.ones(()))
    Meta.rate = 3.0
    return compiled(torch.ones(())).item(), 3.0


@report("F163.2", compiled=True)
def attribute_of_a_metaclass_after_a_write():
    """Compiled code writes to an attribute of a metaclass, and its class still has the old one.

    The class has no attribute of that name.
    """

    class Meta(type):
        rate = 2.0

    class Box(metaclass=Meta):
        pass

    def f(x):
        Meta.rate = 3.0
        return x * Box.rate

    return torch.compile(f, backend="eager")(torch.ones(())).item(), 3.0


@report("F163.3", compiled=True)
def property_of_a_metaclass_after_a_write():
    """Compiled code computes a property of a metaclass as if it had written nothing before.

    The property reads a dictionary, to which the line before writes.
    """
    table = {"rate": 2.0}

    class Meta(type):
        @property
        def rate(cls):
            return table["rate"]

    class Box(metaclass=Meta):
        pass

    def f(x):
        table["rate"] = 3.0
        return x * Box.rate

    return torch.compile(f, backend="eager")(torch.ones(())).item(), 3.0


@report("F171.1", compiled=True)
def class_in_a_closure():
    """Compiled code uses the class that a variable around a function was bound to before.

    A number in the same place is noticed, and so is a class in an attribute.
    """

    class Double:
        def scale(self, x):
            return x * 2

    class Triple:
        def scale(self, x):
            return x * 3

    def made(kind):
        return lambda: kind

    held = [made(Double)]
    compiled = torch.compile(lambda x: held[0]()().scale(x), backend="eager")
    compiled(torch.ones(()))
    held[0] = made(Triple)
    return compiled(torch.ones(())).item(), 3.0


@report("F175.1", compiled=True)
def property_of_super_after_a_write():
    """Compiled code that breaks its graph reads a property of super() as it was before the write
    above it.

    The property is read when the graph ends, and the dictionary is written afterwards."""
    table = {"rate": 2.0}

    class Base:
        @property
        def rate(self):
            return table["rate"]

    class Derived(Base):
        def read(self):
            return super().rate

    derived = Derived()

    def f(x):
        table["rate"] = 3.0
        rate = derived.read()
        torch._dynamo.graph_break()
        return x * rate

    return torch.compile(f, backend="eager")(torch.ones(())).item(), 3.0


@report("F178.1", compiled=True, torch="<2.15")
def instance_check_of_a_number():
    """Compiled code does not ask the __instancecheck__ of a class about a number.

    isinstance(x, Kind) is type(Kind).__instancecheck__(Kind, x), unless Kind is the type of x."""

    class Meta(type):
        def __instancecheck__(cls, other):
            return True

    class Kind(metaclass=Meta):
        pass

    compiled = torch.compile(lambda x: x * (2 if isinstance(0.5, Kind) else 3), backend="eager")
    return compiled(torch.ones(())).item(), 2.0


@report("F178.2", compiled=True)
def instance_check_that_changes():
    """Compiled code does not ask an __instancecheck__ again whose answer depends on an attribute.

    The attribute is one of the class, and it changes between two calls."""

    class Meta(type):
        def __instancecheck__(cls, other):
            return cls.accepts

    class Kind(metaclass=Meta):
        accepts = True

    compiled = torch.compile(lambda x: x * (2 if isinstance(0.5, Kind) else 3), backend="eager")
    first = compiled(torch.ones(())).item()
    Kind.accepts = False
    return [first, compiled(torch.ones(())).item()], [2.0, 3.0]
