"""dataloader: long ETL jobs in one PostgreSQL table, run by threads.

`dataloader.app.queue`: the life of a job in SQL; `dataloader.app.http`: HTTP; `dataloader.app.cli`: the command;
`dataloader.app.postgres`: the embedded server; `workers`: running jobs; `pipelines`: what
jobs do. `docs/architecture.md` describes all folders.
"""

if __name__ == "app":  # imported from a checkout without `dataloader.`
    from dataloader._old_names import redirect

    redirect(__name__)
