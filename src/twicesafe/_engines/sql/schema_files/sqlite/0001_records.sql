-- One narrow row per key. States and causes are small numbers, listed in _engines/sql/commands.py.
-- Only the id is indexed, so a completion touches one page.
CREATE TABLE {t}_meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    schema INTEGER NOT NULL,
    floor INTEGER NOT NULL,
    boot TEXT NOT NULL,
    clock INTEGER NOT NULL
) STRICT;
INSERT INTO {t}_meta VALUES (1, 0, 0, '', 0);
CREATE TABLE {t}_records (
    n INTEGER PRIMARY KEY,
    id BLOB NOT NULL UNIQUE,
    state INTEGER NOT NULL,
    fence INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    owner BLOB NOT NULL,
    lease_until INTEGER NOT NULL,
    created_at INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    hold INTEGER NOT NULL,
    cause INTEGER NOT NULL,
    scope TEXT NOT NULL,
    value TEXT NOT NULL,
    error TEXT NOT NULL,
    fingerprint BLOB,
    apart INTEGER NOT NULL DEFAULT 0,
    result BLOB
) STRICT;
CREATE TABLE {t}_results (n INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT;
CREATE TABLE {t}_audit (
    n INTEGER PRIMARY KEY,
    id BLOB NOT NULL,
    at INTEGER NOT NULL,
    action TEXT NOT NULL,
    done_by TEXT NOT NULL,
    why TEXT NOT NULL,
    state_before INTEGER NOT NULL
) STRICT;
CREATE INDEX {t}_audit_id ON {t}_audit (id);
