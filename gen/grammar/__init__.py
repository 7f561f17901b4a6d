"""Programs as data: drawn by number, compared with two references, made small.

    program = draw(load_grammar(), seed=0, number=7)
    difference_of(program, LEVELS["aot_eager"]())

``programs.yaml`` has the words, ``word_tables`` reads them. ``drawn_program`` is a program and its
text, ``draw`` makes one. ``prelude`` and ``model_world`` are what it calls by name, for torch and
for the model. ``observation`` is what a call gives, ``program_runs`` runs calls, ``program_levels``
says by what. ``program_search`` compares and shrinks, ``written_findings`` writes. The package
imports ``reference.model`` and ``torch_private``. Start with ``program_search.py``.
"""
