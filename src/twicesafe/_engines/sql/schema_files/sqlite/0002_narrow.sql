-- Records get a narrower table. Those that are there are moved to it later, one by one or in batches (0003 moves
-- the rest). The old table gets a new name on purpose: a process that knows only the old layout finds no table,
-- and stops. The newest record is moved now, so that new records are numbered after all old ones.
ALTER TABLE {t}_records RENAME TO {t}_wide;
CREATE TABLE {t}_keys (
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
INSERT INTO {t}_keys
SELECT n, substr(id, 1, 16), state, fence, attempt, owner, lease_until, created_at, changed_at, expires_at,
    hold, cause, scope, value, error, fingerprint, apart, result
FROM {t}_wide ORDER BY n DESC LIMIT 1;
UPDATE {t}_audit SET id = substr(id, 1, 16) WHERE substr(id, 1, 16) IN (SELECT id FROM {t}_keys);
DELETE FROM {t}_wide WHERE n IN (SELECT n FROM {t}_keys);
