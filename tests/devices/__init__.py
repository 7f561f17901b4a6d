"""Devices to try the matrix on, and tests of what it says about them.

`shelf` is a device that works right. `shelf.faults` has twenty mistakes that can be planted in it.
`fault_report` says which of them the matrix names. Start with `shelf/__init__.py`.
"""
