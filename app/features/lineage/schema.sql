-- How far the event stream has been sent as OpenLineage events: a cursor of it; null: not yet.
-- rights of the service: SELECT, UPDATE
CREATE TABLE dl_lineage_state (
    singleton bool PRIMARY KEY DEFAULT true CHECK (singleton),
    cursor    text
);
INSERT INTO dl_lineage_state DEFAULT VALUES;
