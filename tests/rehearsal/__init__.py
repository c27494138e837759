"""An upgrade while jobs run: processes of two releases on one database, under the campaign's load and faults."""
