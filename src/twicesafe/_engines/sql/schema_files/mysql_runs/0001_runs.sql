-- Every statement may be run again: MariaDB and MySQL commit after each change of the schema.
-- Durable runs, beside their records: what the completer needs to run one, and when to look at it again.
-- whole_id: all bytes of the key's identity, which older layouts of the records store; id: the first 16.
-- The table of records stays as it is. States and kinds of steps are listed in _engines/sql/step_rows.py.
CREATE TABLE IF NOT EXISTS {t} (
    id BINARY(16) NOT NULL PRIMARY KEY,
    whole_id VARBINARY(32) NOT NULL,
    due_at BIGINT NOT NULL,
    completes TINYINT NOT NULL,
    function_name BLOB NOT NULL,
    arguments LONGBLOB NOT NULL,
    KEY {t}_due (due_at)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;
-- One row per step. fence: of the claim that wrote it; 0: a signal that came before its run.
CREATE TABLE IF NOT EXISTS {t}_steps (
    id BINARY(16) NOT NULL,
    name VARBINARY(255) NOT NULL,
    kind TINYINT NOT NULL,
    state TINYINT NOT NULL,
    fence BIGINT NOT NULL,
    attempt INT NOT NULL,
    position INT NOT NULL,
    has_undo TINYINT NOT NULL,
    created_at BIGINT NOT NULL,
    changed_at BIGINT NOT NULL,
    due_at BIGINT NOT NULL,
    fingerprint VARBINARY(255) NOT NULL,
    result LONGBLOB,
    PRIMARY KEY (id, name)
) ENGINE=InnoDB ROW_FORMAT=DYNAMIC;
CREATE TABLE IF NOT EXISTS {t}_meta (
    one TINYINT NOT NULL PRIMARY KEY,
    `schema` INT NOT NULL
) ENGINE=InnoDB;
INSERT IGNORE INTO {t}_meta VALUES (1, 0);
