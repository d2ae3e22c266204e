-- What was not moved yet is moved now, and the old table goes.
-- A statement that begins with "if" and the name of a table was run before if that table is missing.
/* if {t}_wide */ INSERT IGNORE INTO {t}_keys
SELECT n, LEFT(id, 16), state, fence, attempt, owner, lease_until, created_at, changed_at, expires_at,
    hold, cause, scope, value, error, fingerprint, result
FROM {t}_wide;
UPDATE {t}_audit SET id = LEFT(id, 16) WHERE LENGTH(id) > 16;
/* if {t}_wide */ DELETE FROM {t}_wide;
DROP TABLE IF EXISTS {t}_wide;
