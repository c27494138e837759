"""Why a job waits, runs, or ended as it did."""
