"""Export programs: as ``torch.export.ExportedProgram``, or as flat graphs with a signature.

``exported_program`` has ``export``, whose result torch saves, loads and runs without this package.
``dims`` has sizes that are symbols with ranges. ``flat_export`` has ``aot_export_module``, and
``flat_functions`` ``aot_export_joint_simple``. ``joint_graphs`` captures the graphs of all three.
The package imports ``aot``. Start with ``exported_program.py``.
"""
