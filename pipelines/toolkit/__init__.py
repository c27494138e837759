"""What the author of a load would otherwise write by hand.

`sources` fetches over HTTP, `decode` reads what came (JSON Lines, CSV, XML; `unpack` opens zstd and gzip), `times`
and `paths` make sense of what callers and sources write, `load` puts rows into PostgreSQL. Their errors are drawn
in `errors`.
"""
