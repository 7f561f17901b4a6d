"""State of Python under torch.compile: what a program reads, and what changes between calls.

The programs are compiled with `backend="eager"`, so no graph is rewritten: Dynamo, which traces
Python, is what is wrong. The right value is that of the same program without a compiler."""

import random
import threading

import torch
from torch import nn

from tests.reports.report import report


@report("F164.1", "pytorch#191059", compiled=True)
def finalizer_of_an_object_of_the_call():
    """The __del__ of one object runs twice.

    The first call makes one object. The tracer makes another one of the class, and drops it.
    """
    dropped = []

    class Dropped:
        def __del__(self):
            dropped.append(1)

    def f(x):
        Dropped()
        return x + 1

    torch.compile(f, backend="eager")(torch.ones(()))
    return len(dropped), 1


@report("F165.1", "pytorch#145445", compiled=True, torch="<2.15")
def draw_of_a_generator_of_python():
    """Compiled code draws the same number at each call, from a random.Random.

    The generator is an object of its own, and each draw moves it. Those of the module `random`
    differ from call to call."""
    generator, same = random.Random(0), random.Random(0)
    compiled = torch.compile(lambda x: x * generator.random(), backend="eager")
    x = torch.ones((), dtype=torch.float64)
    return [compiled(x).item() for _ in range(2)], [same.random(), same.random()]


@report("F166.1", "pytorch#192604", compiled=True, torch="<2.15")
def negative_zero_as_an_argument():
    """Compiled code that has seen 0.0 takes -0.0 for the same number.

    copysign tells the two zeros apart, and so do atan2 and a division.
    """
    compiled = torch.compile(
        lambda x, zero: torch.copysign(x, torch.full_like(x, zero)), backend="eager"
    )
    x = torch.ones(())
    return [compiled(x, 0.0).item(), compiled(x, -0.0).item()], [1.0, -1.0]


@report("F167.1", compiled=True)
def item_of_a_set_of_another_type():
    """Compiled code that has seen a set of 1 takes a set of 1.0 for the same.

    The two numbers are equal and of two types, which the program tells apart. Dictionaries
    with these keys are told apart."""
    compiled = torch.compile(lambda x, items: x * next(iter(items)), backend="eager")
    x = torch.ones((), dtype=torch.int64)
    return [str(compiled(x, items).dtype) for items in ({1}, {1.0})], [
        "torch.int64",
        "torch.float32",
    ]


@report("F168.1", compiled=True)
def attribute_that_comes_after_an_error():
    """Compiled code that has caught an AttributeError does not notice the attribute when it is
    there.

    The same with hasattr, or with a default of getattr, is noticed.
    """

    class Box:
        pass

    box = Box()

    def f(x):
        try:
            return x * box.rate
        except AttributeError:
            return x * 2

    compiled = torch.compile(f, backend="eager")
    compiled(torch.ones(()))
    box.rate = 3.0
    return compiled(torch.ones(())).item(), 3.0


@report("F168.2", compiled=True)
def key_that_comes_after_an_error():
    """Compiled code that has caught a KeyError does not notice the key when it is there.

    The same with `get` or `in` is noticed.
    """
    table = {}

    def f(x):
        try:
            return x * table["rate"]
        except KeyError:
            return x * 2

    compiled = torch.compile(f, backend="eager")
    compiled(torch.ones(()))
    table["rate"] = 3.0
    return compiled(torch.ones(())).item(), 3.0


@report("F168.3", compiled=True)
def class_attribute_that_comes_after_an_error():
    """Compiled code that has caught an AttributeError of a class does not notice the attribute when
    it is there.

    The same with hasattr is noticed."""

    class Box:
        pass

    def f(x):
        try:
            return x * Box.rate
        except AttributeError:
            return x * 2

    compiled = torch.compile(f, backend="eager")
    compiled(torch.ones(()))
    Box.rate = 3.0
    return compiled(torch.ones(())).item(), 3.0


@report("F168.4", compiled=True, torch=">=2.14")
def variable_that_comes_after_an_error():
    """Compiled code that has caught a NameError does not notice the global variable when it is
    there.

    torch 2.13 notices it."""
    names = {"torch": torch}
    text = (
        "def f(x):\n    try:\n        return x * RATE\n    except NameError:\n        return x * 2"
    )
    exec(text, names)
    compiled = torch.compile(names["f"], backend="eager")
    compiled(torch.ones(()))
    names["RATE"] = 3.0
    return compiled(torch.ones(())).item(), 3.0


@report("F169.1", compiled=True, torch="<2.15")
def set_cleared_and_filled_again():
    """Compiled code that clears a set, adds an object and reads it leaves the set as it was.

    The result is that of the new object."""

    class Box:
        def __init__(self, rate):
            self.rate = rate

    boxes = {Box(2.0)}

    def f(x):
        boxes.clear()
        boxes.add(Box(3.0))
        return x * next(iter(boxes)).rate

    torch.compile(f, backend="eager")(torch.ones(()))
    return [box.rate for box in boxes], [3.0]


@report("F170.1", compiled=True)
def hook_registered_after_the_call():
    """Compiled code that registers a hook after it has called the module does not run the hook at
    the next calls.

    The hook is there after the first call, and the second call doubles."""
    module = nn.Identity()

    def f(x):
        y = module(x)
        module.register_forward_hook(lambda module, args, y: y * 2)
        return y

    compiled = torch.compile(f, backend="eager")
    return [compiled(torch.ones(())).item() for _ in range(3)], [1.0, 2.0, 4.0]


@report(
    "F172.1",
    compiled=True,
    raises="method_setattr_standard() missing 1 required positional argument",
)
def deleted_attribute_of_a_thread():
    """Compiled code cannot delete an attribute of a threading.local: the compiler itself fails.

    Reading and writing such an attribute are traced, and the same of another object."""
    local = threading.local()
    local.rate = 2.0

    def f(x):
        del local.rate
        return x + 1

    return torch.compile(f, backend="eager")(torch.ones(())).item(), 2.0


@report("F173.1", compiled=True)
def coroutine_that_nobody_awaits():
    """Compiled code runs the body of a coroutine that is made and not awaited.

    A call of an async function makes a coroutine, whose body runs when it is awaited."""
    seen = []

    async def note(x):
        seen.append(1)
        return x

    def f(x):
        coroutine = note(x)
        return x * len(seen), coroutine

    return torch.compile(f, backend="eager")(torch.ones(()))[0].item(), 0.0


@report("F173.2", compiled=True, raises="has no attribute 'send'")
def coroutine_that_is_sent_to():
    """Compiled code that sends to a coroutine of tensors fails, since the call has run its body.

    The coroutine ends at once with the product."""

    async def doubled(x):
        return x * 2

    def ended(coroutine):
        try:
            coroutine.send(None)
        except StopIteration as end:
            return end.value

    return torch.compile(lambda x: ended(doubled(x)), backend="eager")(torch.ones(())).item(), 2.0


@report("F174.1", compiled=True, torch="<2.15")
def flag_that_a_hook_writes_over_a_number():
    """A hook of compiled code that writes True over 1 to a class leaves 1.

    The two are equal and of two types. The hook runs once for each gradient, and writes 2 over 1 as
    it should."""

    class Box:
        rate = 1

    def alter(gradient):
        Box.rate = True

    def f(x):
        leaf = x.detach().requires_grad_()
        y = leaf * 2
        y.register_hook(alter)
        return torch.autograd.grad(y, leaf)[0]

    torch.compile(f, backend="eager")(torch.ones(()))
    return str(Box.rate), "True"


@report("F176.1", compiled=True, torch="<2.14")
def float_formatted_to_one_digit():
    """Compiled code that formats a float to one digit gives all digits, from the second value on.

    f'{1.76:.1f}' is '1.8'. torch 2.14 and 2.15 fail inside of the compiler, which formats a text
    with a code for numbers."""
    compiled = torch.compile(lambda x, rate: x * float(f"{rate:.1f}"), backend="eager")
    return [compiled(torch.ones(()), rate).item() for rate in (1.5, 1.76)], [1.5, 1.8]


@report("F176.2", compiled=True, raises="is not a constant")
def float_formatted_by_a_function():
    """Compiled code that calls format(x, '.1f') fails inside of the compiler, from the second value
    on.

    The text is '1.8'."""
    compiled = torch.compile(lambda x, rate: x * float(format(rate, ".1f")), backend="eager")
    return [compiled(torch.ones(()), rate).item() for rate in (1.5, 1.76)], [1.5, 1.8]


@report("F177.1", compiled=True, raises="SymNodeVariable() is not a constant")
def list_sorted_in_an_order_that_numbers_decide():
    """Compiled code that sorts a list in reverse if one number is less than another fails inside of
    the compiler.

    `reverse` is True for the first call and False for the second one."""

    def f(x, numbers):
        numbers.sort(reverse=numbers[0] < numbers[1])
        return x * numbers[0]

    compiled = torch.compile(f, backend="eager")
    results = [compiled(torch.ones(()), list(numbers)) for numbers in ((1.0, 2.0), (4.0, 3.0))]
    return [result.item() for result in results], [2.0, 3.0]


@report("F179.1", compiled=True)
def key_that_comes_to_the_attributes():
    """Compiled code that has not found a name in vars(x) does not notice the attribute when it is
    there.

    vars(x) is the dictionary of the attributes of x. The same of another dictionary is noticed."""

    class Box:
        pass

    box = Box()
    compiled = torch.compile(lambda x: x * vars(box).get("rate", 2.0), backend="eager")
    compiled(torch.ones(()))
    box.rate = 3.0
    return compiled(torch.ones(())).item(), 3.0


@report("F179.2", compiled=True)
def number_of_attributes():
    """Compiled code takes the number of attributes of an object for a constant.

    The object has no attribute at the first call, and one at the second call."""

    class Box:
        pass

    box = Box()
    compiled = torch.compile(lambda x: x * len(vars(box)), backend="eager")
    compiled(torch.ones(()))
    box.rate = 3.0
    return compiled(torch.ones(())).item(), 1.0


@report("F180.1", "pytorch#196173", compiled=True)
def attributes_that_become_one_object():
    """Compiled code that has found two attributes to be two objects does not notice that they are
    one.

    One attribute is assigned between the calls, an object of the same class."""

    class Box:
        pass

    box = Box()
    box.left, box.right = Box(), Box()
    compiled = torch.compile(lambda x: x * (2.0 if box.left is box.right else 3.0), backend="eager")
    first = compiled(torch.ones(())).item()
    box.right = box.left
    return [first, compiled(torch.ones(())).item()], [3.0, 2.0]


@report("F180.2", "pytorch#196173", compiled=True)
def list_that_contains_an_object():
    """Compiled code that has not found an object in a list of another does not notice it once it
    is there.

    `in` compares by identity first. The arguments are the same object at the second call."""

    class Box:
        pass

    compiled = torch.compile(
        lambda x, left, right: x * (2.0 if left in [right] else 3.0), backend="eager"
    )
    a, b = Box(), Box()
    return [compiled(torch.ones(()), a, one).item() for one in (b, a)], [3.0, 2.0]


@report("F181.1", compiled=True)
def state_that_a_function_reads_in_the_backward_pass():
    """The backward pass of compiled code goes on with the state of the call, where a custom
    Function reads a state in its backward.

    Eager mode runs the Function's backward when the caller runs the pass, after the assignment."""

    class Box:
        rate = 2.0

    box = Box()

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient * box.rate

    compiled = torch.compile(lambda x: Scale.apply(x) * 1, backend="eager")
    found = []
    for rate in (2.0, 3.0):
        x = torch.ones((), requires_grad=True)
        y = compiled(x)
        box.rate = rate
        y.backward()
        found.append(x.grad.item())
    return found, [2.0, 3.0]


@report("F181.2", compiled=True)
def state_that_a_hook_reads_in_the_backward_pass():
    """The backward pass of compiled code goes on with the state of the call, where a hook of a
    tensor reads a state.

    Eager mode calls the hook when the gradient arrives, after the assignment."""

    class Box:
        rate = 2.0

    box = Box()

    def program(x):
        y = x * 1
        y.register_hook(lambda gradient: gradient * box.rate)
        return y * 1

    compiled = torch.compile(program, backend="eager")
    found = []
    for rate in (2.0, 3.0):
        x = torch.ones((), requires_grad=True)
        y = compiled(x)
        box.rate = rate
        y.backward()
        found.append(x.grad.item())
    return found, [2.0, 3.0]
