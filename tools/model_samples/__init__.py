"""Write the family `models` of the matrix: the calls of torch that small models make.

``models`` makes the models and trains each for one step, ``__main__`` records their calls and
writes ``matrix/models.yaml``. Start with ``models.py``.
"""
