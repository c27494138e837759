"""The message after an act on a page, and its undo."""
