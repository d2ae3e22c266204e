-- Durable runs, beside their records: what the completer needs to run one, and when to look at it again.
-- whole_id: all bytes of the key's identity, which older layouts of the records store; id: the first 16.
-- The table of records stays as it is. States and kinds of steps are listed in _engines/sql/step_rows.py.
CREATE TABLE {t}_meta (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    schema integer NOT NULL
);
INSERT INTO {t}_meta (schema) VALUES (0);
CREATE TABLE {t} (
    due_at bigint NOT NULL,
    completes smallint NOT NULL,
    id bytea PRIMARY KEY,
    whole_id bytea NOT NULL,
    function_name bytea NOT NULL,
    arguments bytea NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX ON {t} (due_at);
-- One row per step. fence: of the claim that wrote it; 0: a signal that came before its run.
CREATE TABLE {t}_steps (
    fence bigint NOT NULL,
    created_at bigint NOT NULL,
    changed_at bigint NOT NULL,
    due_at bigint NOT NULL,
    attempt integer NOT NULL,
    position integer NOT NULL,
    kind smallint NOT NULL,
    state smallint NOT NULL,
    has_undo smallint NOT NULL,
    id bytea NOT NULL,
    name bytea NOT NULL,
    fingerprint bytea NOT NULL,
    result bytea,
    PRIMARY KEY (id, name)
) WITH (
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.1
);
