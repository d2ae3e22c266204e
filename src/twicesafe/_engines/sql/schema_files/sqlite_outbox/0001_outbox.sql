-- Messages wait here until a relay has published them; then their rows are deleted. The names id, aggregatetype,
-- aggregateid, type and payload are those of Debezium's outbox event router, as on the other engines.
-- n is the order, and is never used again (AUTOINCREMENT); lane: messages of one ordering key, in order;
-- slot: the part of all lanes that one relay leases.
CREATE TABLE {t}_meta (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    schema INTEGER NOT NULL
) STRICT;
INSERT INTO {t}_meta VALUES (1, 0);
CREATE TABLE {t} (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    created_at INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    lane BLOB NOT NULL,
    id TEXT NOT NULL,
    aggregatetype TEXT NOT NULL,
    aggregateid TEXT,
    type TEXT NOT NULL,
    headers TEXT NOT NULL,
    payload BLOB NOT NULL
) STRICT;
-- Which relay leases which slot, until when (the store's clock). Fences only grow.
CREATE TABLE {t}_slots (
    slot INTEGER PRIMARY KEY,
    owner BLOB NOT NULL,
    fence INTEGER NOT NULL,
    lease_until INTEGER NOT NULL
) STRICT;
WITH RECURSIVE s(slot) AS (SELECT 0 UNION ALL SELECT slot + 1 FROM s WHERE slot < 63)
INSERT INTO {t}_slots SELECT slot, x'', 0, 0 FROM s;
-- The relays that are alive.
CREATE TABLE {t}_relays (
    owner BLOB PRIMARY KEY,
    seen_until INTEGER NOT NULL,
    asleep INTEGER NOT NULL
) STRICT;
-- Lanes whose first message was refused: they wait for their back-off, or are parked until an operator decides.
CREATE TABLE {t}_troubles (
    lane BLOB PRIMARY KEY,
    n INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    not_before INTEGER NOT NULL,
    parked INTEGER NOT NULL,
    since INTEGER NOT NULL,
    error TEXT NOT NULL
) STRICT;
-- Messages of parked lanes, which relays do not read; and those that an operator skipped.
CREATE TABLE {t}_parked (
    n INTEGER PRIMARY KEY,
    created_at INTEGER NOT NULL,
    slot INTEGER NOT NULL,
    lane BLOB NOT NULL,
    id TEXT NOT NULL,
    aggregatetype TEXT NOT NULL,
    aggregateid TEXT,
    type TEXT NOT NULL,
    headers TEXT NOT NULL,
    payload BLOB NOT NULL,
    skipped_at INTEGER NOT NULL DEFAULT 0,
    skipped_by TEXT NOT NULL DEFAULT '',
    skipped_why TEXT NOT NULL DEFAULT ''
) STRICT;
CREATE INDEX {t}_parked_lane ON {t}_parked (lane);
