"""Ask a target whether it fulfils the protocol, by running ops through it.

`trial_cells.py` has a few small cells for each word of what a target may lack.
`watched_target.py` looks at what the members return while these run, and at their signatures.
`protocol_check.py` puts together what is said of each word. The package imports `gen.checks`,
`gen.run`, `gen.devices` and `gen.targets`. Start with `protocol_check.py`.
"""
