"""dataloader: long ETL jobs in one PostgreSQL table, run by threads.

`app.queue`: the life of a job in SQL; `app.web`: HTTP; `app.cli`: the command;
`app.postgres`: the embedded server; `workers`: running jobs; `pipelines`: what
jobs do. `docs/architecture.md` describes all folders.
"""
