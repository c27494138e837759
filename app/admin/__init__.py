"""What operators read and change: search, edits, bulk, queues, statistics, retention, webhooks, keys, audit."""
