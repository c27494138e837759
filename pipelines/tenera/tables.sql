CREATE SCHEMA IF NOT EXISTS quotes;

CREATE TABLE IF NOT EXISTS quotes.quote_section (
    section_id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source text NOT NULL,
    code text NOT NULL,
    UNIQUE (source, code)
);

CREATE TABLE IF NOT EXISTS quotes.quote (
    quote_id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    section_id integer NOT NULL REFERENCES quotes.quote_section,
    code text NOT NULL,
    name text NOT NULL,
    UNIQUE (section_id, code)
);

CREATE TABLE IF NOT EXISTS quotes.quote_value (
    quote_id integer NOT NULL REFERENCES quotes.quote,
    grain text NOT NULL CHECK (grain IN ('day', 'moment')),
    quoted_at timestamptz NOT NULL,
    quoted_on date NOT NULL,
    open numeric,
    high numeric,
    low numeric,
    close numeric,
    volume numeric,
    measures jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (quote_id, grain, quoted_at)
);
CREATE INDEX IF NOT EXISTS quote_value_quoted_on ON quotes.quote_value (quoted_on);

COMMENT ON COLUMN quotes.quote_value.grain IS 'day: a value of a whole day; moment: a value at a time';
COMMENT ON COLUMN quotes.quote_value.quoted_at IS 'of a day: its midnight in Moscow';
COMMENT ON COLUMN quotes.quote_value.quoted_on IS 'the day as the source states it; of a moment: its day in Moscow';
COMMENT ON COLUMN quotes.quote_value.measures IS 'what the source tells beyond the columns';
