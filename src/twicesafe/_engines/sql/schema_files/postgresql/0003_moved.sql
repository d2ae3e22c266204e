-- What was not moved yet is moved now, and the old table goes.
LOCK TABLE {t}_wide IN ACCESS EXCLUSIVE MODE;
INSERT INTO {t}_keys (fence, changed_at, lease_until, created_at, expires_at, attempt, state, cause, hold, awaited,
    id, owner, fingerprint, scope, value, error, result)
SELECT fence, changed_at, nullif(lease_until, 0), nullif(created_at, changed_at), nullif(expires_at, 0),
    least(attempt, 32767), state, nullif(cause, 0), hold, nullif(awaited, false),
    encode(substr(id, 1, 16), 'hex')::uuid, nullif(owner, ''), fingerprint, nullif(scope, ''), nullif(value, ''),
    nullif(error, ''), result
FROM {t}_wide;
UPDATE {t}_audit SET id = substr(id, 1, 16) WHERE length(id) > 16;
DROP TABLE {t}_wide;
