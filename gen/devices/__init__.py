"""Devices: what a run needs to know of the one that it is on, which torch need not know of.

`device.py` is a device as `matrix.yaml` names it: it may have to be imported first. `place.py`
moves the inputs of a cell there and its results back, as samples and references are on the CPU.
`host_runs.py` sees which ops the device left to the CPU. The package imports torch, `gen.outcomes`
and `gen.torch_private`. Start with `device.py`.
"""
