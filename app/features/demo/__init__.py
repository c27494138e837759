"""Demo: a small company whose jobs run on an embedded server, to look at."""
