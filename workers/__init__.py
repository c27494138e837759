"""Runs jobs. `WorkerPool` in pool.py is the entry point: it starts and stops the worker and background threads."""

if __name__ == "workers":  # imported from a checkout without `dataloader.`
    from dataloader._old_names import redirect

    redirect(__name__)
