-- A claim is one function, which schema.sql creates with the others.
SELECT 1;
