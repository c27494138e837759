"""Statistics of finished jobs: counts, durations, failures, charts."""
