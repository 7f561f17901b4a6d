"""Run a program over the target and over each reference, and compare the results.

``comparison.py`` chooses for each word of `against:` what the results are compared with.
``reference_words.py`` sorts these words. ``double_precision.py`` has results by differences,
``own_references.py`` those of a row's or OpInfo's reference, ``input_pieces.py`` those of pieces of
the inputs. The package imports samples, pipelines, references and the modules ``compare*`` beside
it. Start with ``comparison.py``.
"""
