"""Fetching, unpacking, parsing and bulk loading for pipelines.

`sources` fetches over HTTP, `decode` parses JSON Lines, CSV and XML, `unpack` expands zstd and gzip, `times` and
`paths` parse times and check file names, `load` puts rows into PostgreSQL. `errors` lists their errors.
"""
