-- Records get a narrower table. Those that are there are moved to it later, one by one or in batches (0003 moves
-- the rest). The old table gets a new name on purpose: a process that knows only the old layout finds no table,
-- and stops.
-- A NULL takes no room in a row: lease_until and expires_at 0, created_at as changed_at, cause 0, awaited false,
-- and empty bytes are stored as NULL.
-- The fillfactor keeps room for the end of the last claims of a page, so that completions stay heap-only (HOT).
ALTER TABLE {t}_records RENAME TO {bare}_wide;
CREATE TABLE {t}_keys (
    fence bigint NOT NULL,
    changed_at bigint NOT NULL,
    lease_until bigint,
    created_at bigint,
    expires_at bigint,
    attempt smallint NOT NULL,
    state smallint NOT NULL,
    cause smallint,
    hold boolean NOT NULL,
    awaited boolean,
    id uuid PRIMARY KEY,
    owner bytea,
    fingerprint bytea,
    scope bytea,
    value bytea,
    error bytea,
    result bytea
) WITH (
    fillfactor = 96,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.1
);
