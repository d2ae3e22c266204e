-- What was not moved yet is moved now, and the old table goes.
INSERT INTO {t}_keys
SELECT n, substr(id, 1, 16), state, fence, attempt, owner, lease_until, created_at, changed_at, expires_at,
    hold, cause, scope, value, error, fingerprint, apart, result
FROM {t}_wide;
UPDATE {t}_audit SET id = substr(id, 1, 16) WHERE length(id) > 16;
DROP TABLE {t}_wide;
