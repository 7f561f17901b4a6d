"""`gen run --cluster`: a run on many machines.

A coordinator hands out groups of cells (`groups`), hears what came of them (`coordinator`) and
writes one results file (`output`). It knows of a pool only that groups go in and answers come out;
`dask_pool` is such a pool. A Dask worker gives a group to a process that runs cells (`serving`),
and each cell runs in a fork of that process, as under pytest.
"""
