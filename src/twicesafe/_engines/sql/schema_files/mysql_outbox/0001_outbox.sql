-- Every statement may be run again: MariaDB and MySQL commit after each change of the schema.
-- Messages wait here until a relay has published them; then their rows are deleted. The names id, aggregatetype,
-- aggregateid, type and payload are those of Debezium's outbox event router, so CDC can read the same table.
-- n is the order; lane: messages of one ordering key, in order; slot: the part of all lanes that one relay leases.
CREATE TABLE IF NOT EXISTS {t} (
    n BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    created_at BIGINT NOT NULL,
    slot SMALLINT NOT NULL,
    lane BINARY(16) NOT NULL,
    id VARCHAR(255) NOT NULL,
    aggregatetype VARCHAR(255) NOT NULL,
    aggregateid VARCHAR(255),
    type VARCHAR(255) NOT NULL,
    headers MEDIUMTEXT NOT NULL,
    payload LONGBLOB NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
-- Which relay leases which slot, until when (the server's clock). Fences only grow.
CREATE TABLE IF NOT EXISTS {t}_slots (
    slot SMALLINT NOT NULL PRIMARY KEY,
    owner VARBINARY(64) NOT NULL,
    fence BIGINT NOT NULL,
    lease_until BIGINT NOT NULL
) ENGINE=InnoDB;
INSERT IGNORE INTO {t}_slots
WITH RECURSIVE s(slot) AS (SELECT 0 UNION ALL SELECT slot + 1 FROM s WHERE slot < 63)
SELECT slot, '', 0, 0 FROM s;
-- A transaction that adds to a lane locks its gate until it commits, so n grows in commit order.
CREATE TABLE IF NOT EXISTS {t}_gates (gate SMALLINT NOT NULL PRIMARY KEY) ENGINE=InnoDB;
INSERT IGNORE INTO {t}_gates
WITH RECURSIVE s(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM s WHERE i < 31)
SELECT a.i * 32 + b.i FROM s AS a JOIN s AS b;
-- The relays that are alive.
CREATE TABLE IF NOT EXISTS {t}_relays (
    owner VARBINARY(64) NOT NULL PRIMARY KEY,
    seen_until BIGINT NOT NULL,
    asleep TINYINT NOT NULL
) ENGINE=InnoDB;
-- Lanes whose first message was refused: they wait for their back-off, or are parked until an operator decides.
CREATE TABLE IF NOT EXISTS {t}_troubles (
    lane BINARY(16) NOT NULL PRIMARY KEY,
    n BIGINT NOT NULL,
    attempts INT NOT NULL,
    not_before BIGINT NOT NULL,
    parked TINYINT NOT NULL,
    since BIGINT NOT NULL,
    error MEDIUMTEXT NOT NULL
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
-- Messages of parked lanes, which relays do not read; and those that an operator skipped.
CREATE TABLE IF NOT EXISTS {t}_parked (
    n BIGINT NOT NULL PRIMARY KEY,
    created_at BIGINT NOT NULL,
    slot SMALLINT NOT NULL,
    lane BINARY(16) NOT NULL,
    id VARCHAR(255) NOT NULL,
    aggregatetype VARCHAR(255) NOT NULL,
    aggregateid VARCHAR(255),
    type VARCHAR(255) NOT NULL,
    headers MEDIUMTEXT NOT NULL,
    payload LONGBLOB NOT NULL,
    skipped_at BIGINT NOT NULL DEFAULT 0,
    skipped_by VARCHAR(255) NOT NULL DEFAULT '',
    skipped_why MEDIUMTEXT NOT NULL DEFAULT (''),
    KEY {t}_parked_lane (lane)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
CREATE TABLE IF NOT EXISTS {t}_meta (
    one TINYINT NOT NULL PRIMARY KEY,
    `schema` INT NOT NULL
) ENGINE=InnoDB;
INSERT IGNORE INTO {t}_meta VALUES (1, 0);
