"""`load.tenera`: quotes from the SuperTenera aggregator into schema `quotes`.

`sources` declares each source's payload: edit it to fit the real payloads. `shapes` parses payloads by their
declaration, `tables.sql` has the tables, and `load` is the pipeline.
"""
