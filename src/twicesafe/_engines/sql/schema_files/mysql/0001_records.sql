-- Every statement may be run again: MariaDB and MySQL commit after each change of the schema, so a
-- migration that was interrupted is started again.
-- The id is 32 raw bytes, and text is compared byte by byte: no collation merges "abc" and "ABC".
-- Rows are clustered in the order of insertion; the id is the only index that claims pay for.
-- Large results are stored outside the row (ROW_FORMAT=DYNAMIC).
CREATE TABLE IF NOT EXISTS {t}_records (
    n BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id BINARY(32) NOT NULL,
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
CREATE TABLE IF NOT EXISTS {t}_audit (
    n BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id BINARY(32) NOT NULL,
    at BIGINT NOT NULL,
    action VARCHAR(32) NOT NULL,
    done_by MEDIUMTEXT NOT NULL,
    why MEDIUMTEXT NOT NULL,
    state_before TINYINT NOT NULL,
    KEY {t}_audit_id (id)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC DEFAULT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin;
CREATE TABLE IF NOT EXISTS {t}_meta (
    one TINYINT NOT NULL PRIMARY KEY,
    `schema` INT NOT NULL,
    floor BIGINT NOT NULL
) ENGINE=InnoDB;
INSERT IGNORE INTO {t}_meta VALUES (1, 0, 0);
