-- Durable runs, beside their records: what the completer needs to run one, and when to look at it again.
-- whole_id: all bytes of the key's identity, which older layouts of the records store; id: the first 16.
-- The table of records stays as it is. States and kinds of steps are listed in _engines/sql/step_rows.py.
CREATE TABLE {t}_meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    schema INTEGER NOT NULL
) STRICT;
INSERT INTO {t}_meta VALUES (1, 0);
CREATE TABLE {t} (
    id BLOB PRIMARY KEY,
    whole_id BLOB NOT NULL,
    due_at INTEGER NOT NULL,
    completes INTEGER NOT NULL,
    function_name BLOB NOT NULL,
    arguments BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX {t}_due ON {t} (due_at);
-- One row per step. fence: of the claim that wrote it; 0: a signal that came before its run.
CREATE TABLE {t}_steps (
    id BLOB NOT NULL,
    name BLOB NOT NULL,
    kind INTEGER NOT NULL,
    state INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    position INTEGER NOT NULL,
    has_undo INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    due_at INTEGER NOT NULL,
    fingerprint BLOB NOT NULL,
    result BLOB,
    PRIMARY KEY (id, name)
) STRICT;
