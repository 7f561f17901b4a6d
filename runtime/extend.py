"""The names that a third party needs to add an op, a family, a transform, a compiler or a per-sample rule. See ``docs/extending.md``.

An op            ``register``, or a family: ``pointwise``, ``diagonal``, ``elementwise``, ``flat``, ``nondifferentiable``, ``linear``,
                 ``multilinear``, ``random``, ``view``. ``batch_rules``: batch rules that many ops share.
A family         a function that calls ``register``. ``asking`` declares the parameters of a formula, if its signature does not. ``conj``.
A transform      ``Level``, ``Value`` and ``transform``. ``LevelMode`` for a level that must see calls without any of its values.
A compiler       a ``Compiler`` for ``runtime.aot.aot_function``; ``make_boxed_func``. A ``Partition`` cuts a joint graph in two.
A per-sample     ``layer``, and ``need_batch``.
rule
"""

from .aot.compilers.boxed import Compiler, make_boxed_func
from .aot.partition.partitions import Partition
from .errors import BatchingError, EscapedValue, MissingRule
from .expanded_weights.layer import layer, need_batch
from .func.batch import fallback_policy
from .func.level_transform import transform
from .rules import Record, register
from .rules import derive_batch as batch_rules
from .rules.derive import conj, diagonal, elementwise, flat, linear, multilinear, nondifferentiable, pointwise, random, view
from .rules.record import asking
from .seam.level_mode import LevelMode
from .seam.levels import Level, Value

__all__ = [
    "BatchingError",
    "Compiler",
    "EscapedValue",
    "Level",
    "LevelMode",
    "MissingRule",
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
    "layer",
    "linear",
    "make_boxed_func",
    "multilinear",
    "need_batch",
    "nondifferentiable",
    "pointwise",
    "random",
    "register",
    "transform",
    "view",
]
