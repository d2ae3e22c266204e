-- One narrow row per key; large results are stored outside it (TOAST).
-- No column that changes after the claim is indexed, so that completions stay heap-only (HOT).
-- Text from senders and users is bytea: it may hold any character, also NUL, and is compared byte by byte.
CREATE TABLE {t}_meta (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    schema integer NOT NULL,
    floor bigint NOT NULL
);
INSERT INTO {t}_meta (schema, floor) VALUES (0, 0);
CREATE TABLE {t}_records (
    fence bigint NOT NULL,
    lease_until bigint NOT NULL,
    created_at bigint NOT NULL,
    changed_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    attempt integer NOT NULL,
    state smallint NOT NULL,
    cause smallint NOT NULL,
    hold boolean NOT NULL,
    awaited boolean NOT NULL DEFAULT false,
    id bytea PRIMARY KEY,
    owner bytea NOT NULL,
    fingerprint bytea,
    scope bytea NOT NULL,
    value bytea NOT NULL,
    error bytea NOT NULL,
    result bytea
) WITH (
    fillfactor = 100,
    autovacuum_vacuum_scale_factor = 0.05,
    autovacuum_vacuum_insert_scale_factor = 0.1
);
CREATE TABLE {t}_audit (
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id bytea NOT NULL,
    at bigint NOT NULL,
    action text NOT NULL,
    done_by bytea NOT NULL,
    why bytea NOT NULL,
    state_before smallint NOT NULL
);
CREATE INDEX ON {t}_audit (id);
