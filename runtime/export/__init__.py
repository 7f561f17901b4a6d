"""Export programs: as ``torch.export.ExportedProgram``, or as flat graphs with a signature.

``exported_program`` has ``export``, whose result torch saves, loads and runs without this package.
``dynamic_shapes`` reads what a caller says of sizes, and ``dims`` makes symbols with ranges of it.
``flat_export`` has ``aot_export_module``, and ``flat_functions`` ``aot_export_joint_simple``.
``joint_graphs`` captures the graphs of all three. The package imports ``aot``. Start with
``exported_program.py``.
"""
