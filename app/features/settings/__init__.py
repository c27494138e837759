"""The page of settings in force."""
