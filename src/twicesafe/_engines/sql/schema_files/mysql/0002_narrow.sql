-- Records get a narrower table. Those that are there are moved to it later, one by one or in batches (0003 moves
-- the rest). The old table gets a new name on purpose: a process that knows only the old layout finds no table,
-- and stops. The newest record is moved now, so that new records are numbered after all old ones.
-- A statement that begins with "if" and the name of a table was run before if that table is missing.
ALTER TABLE {t}_audit MODIFY id VARBINARY(32) NOT NULL;
CREATE TABLE IF NOT EXISTS {t}_keys (
    n BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id BINARY(16) NOT NULL,
    state TINYINT NOT NULL,
    fence BIGINT NOT NULL,
    attempt INT NOT NULL,
    owner VARBINARY(64) NOT NULL,
    lease_until BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    changed_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    hold TINYINT NOT NULL,
    cause TINYINT NOT NULL,
    scope TEXT NOT NULL,
    value VARCHAR(255) NOT NULL,
    error TEXT NOT NULL,
    fingerprint BLOB,
    result LONGBLOB,
    UNIQUE KEY {t}_identity (id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
/* if {t}_records */ RENAME TABLE {t}_records TO {t}_wide;
INSERT IGNORE INTO {t}_keys
SELECT n, LEFT(id, 16), state, fence, attempt, owner, lease_until, created_at, changed_at, expires_at,
    hold, cause, scope, value, error, fingerprint, result
FROM {t}_wide ORDER BY n DESC LIMIT 1;
UPDATE {t}_audit SET id = LEFT(id, 16) WHERE LEFT(id, 16) IN (SELECT id FROM {t}_keys);
DELETE FROM {t}_wide WHERE n IN (SELECT n FROM {t}_keys);
