"""The page of tasks, and the API of their numbers."""
