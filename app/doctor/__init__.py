"""`dataloader doctor`: what is wrong with the database, the schema, the server and the queue, and what would mend it.

    findings.py   a finding: how bad, what was found, what would do
    server.py     the server, its settings, the role, the clock, poolers
    schema.py     rights, drift from schema.sql, indexes
    queue.py      bloat, transactions, and what waits in vain
    examine.py    asks everything, and collects what is found

catalogue.json is what schema.sql makes; `python -m app.doctor` writes it anew.
"""
