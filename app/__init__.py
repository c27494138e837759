"""dataloader: long ETL jobs in one PostgreSQL table, run by threads.

The rooms: `app.queue` speaks SQL, `app.web` speaks HTTP, `app.cli` is the
command, `app.postgres` starts a server where there is none; `workers` runs
jobs; `pipelines` is what jobs do. `docs/architecture.md` draws the picture.
"""
