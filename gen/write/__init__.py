"""Write generated_tests/.

``render`` makes modules of cells by a template, ``literals`` writes every value as Python source,
``writer`` changes the folder all or nothing. The package imports ``plan``, ``language`` and
``run.inventory``. Start with ``render.py``.
"""
