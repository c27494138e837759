"""What each task did on each day, and what it did not do although it was due."""
