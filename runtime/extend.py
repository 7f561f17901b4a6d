"""Export the names that a third party needs to add an op, a family, a transform, a compiler or a
per-sample rule. See ``docs/extending.md``.

An op            ``register``, or a family: ``pointwise``, ``diagonal``, ``elementwise``, ``flat``,
                 ``nondifferentiable``, ``linear``, ``multilinear``, ``random``, ``view``.
                 ``batch_rules``: batch rules that many ops share.
A family         a function that calls ``register``. ``asking`` declares the parameters of a
                 formula, if its signature does not. ``conj``.
A transform      ``Level``, ``Value`` and ``transform``. ``LevelMode`` for a level that must see
                 calls without any of its values.
A compiler       a ``Compiler`` for ``runtime.aot.aot_function``; ``make_boxed_func``. A
                 ``Partition`` cuts a joint graph in two.
A per-sample     the part ``per_sample`` of a record, made of ``Outer``, ``Dense`` and other terms,
rule             and the part ``places``, from ``place_rules``.
"""

from .aot.compilers.boxed import Compiler, make_boxed_func
from .aot.partition.partitions import Partition
from .errors import BatchingError, EscapedValue, MissingRule
from .func.batch import fallback_policy
from .func.level_transform import transform
from .rules import Record, register
from .rules.derive import batch_rules as batch_rules
from .rules.derive.families import (
    conj,
    diagonal,
    elementwise,
    flat,
    linear,
    multilinear,
    nondifferentiable,
    pointwise,
    random,
    view,
)
from .rules.record import asking
from .rules.samples import place_rules
from .rules.samples.factors import Dense, Outer
from .seam.level_mode import LevelMode
from .seam.levels import Level, Value

__all__ = [
    "BatchingError",
    "Compiler",
    "Dense",
    "EscapedValue",
    "Level",
    "LevelMode",
    "MissingRule",
    "Outer",
    "Partition",
    "Record",
    "Value",
    "asking",
    "batch_rules",
    "conj",
    "diagonal",
    "elementwise",
    "fallback_policy",
    "flat",
    "linear",
    "make_boxed_func",
    "multilinear",
    "nondifferentiable",
    "place_rules",
    "pointwise",
    "random",
    "register",
    "transform",
    "view",
]
