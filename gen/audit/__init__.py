"""Plant faults in a target, one at a time, and count those that the matrix catches.

A matrix that always passes may test nothing. There are two sorts of faults.

Faults of transforms corrupt what a target's vjp, jvp, … return. ``kinds`` corrupts a tuple of
tensors, ``planted`` does so at one place of a target, and ``campaign`` draws the faults and
collects what became of them.

Faults of rules are inside the target, in the rule of one op. ``rule_faults`` draws them from the
rules that a target offers by :mod:`gen.targets.faults`, ``reach`` finds which cells run which rule,
and ``workers`` run the cells.

The package imports ``run``, ``checks`` and ``targets``. Start with ``campaign.py``.
"""
