-- How a server of the queue is recognized.

-- name: queue_origin
-- Return when the queue's tables were created: a copy, an upgraded and a restored server keep it, another queue has another.
SELECT extract(epoch FROM min(applied_at))::text FROM dl_schema;
