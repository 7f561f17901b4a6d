"""Choose the cells that a run takes: a shard of all, those of a level, or those that a change
affects.

``shard`` divides all cells into parts, and ``shard_plugin`` makes those of one part under pytest.
``level_run`` takes the cells of a level. ``since_plugin`` leaves out the cells that a change since
a commit cannot affect, which ``unaffected`` tells. ``gen.run.plugin`` asks each for its choice. The
package imports ``checks``, ``dependencies`` and files of ``gen.run``. Start with ``shard.py``.
"""
