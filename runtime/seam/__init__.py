"""Finds the level that handles an ATen call.

A transform that runs is a *level*. Its tensors are *values*: objects of a tensor subclass that know
their level. Each ATen call with a value among its arguments arrives here and goes to the innermost
of these levels. This package imports ``errors`` and ``torch_private``. Start with ``levels.py``;
``dispatch.py`` finds the level of a call, and ``scope.py`` lists the levels whose function runs.
``level_mode.py`` is for calls without any value, ``ambient.py`` for the state of a thread. All
floors use the walks of ``containers.py``, through arguments, and ``graph_walks.py``.
"""
