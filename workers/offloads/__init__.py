"""Work that jobs give to other engines: submitted, found again, waited for and stopped."""
