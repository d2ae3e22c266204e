-- The table of records becomes the first of many partitions. Each generation is one, and is dropped as a whole.
-- The existing records are the first generation. Its index is built again, which blocks claims meanwhile.
-- The table gets a new name on purpose: a worker without generations finds no table, and stops.
ALTER TABLE {t}_{holder} RENAME TO {bare}_g1;
ALTER TABLE {t}_g1 ADD COLUMN generation integer NOT NULL DEFAULT 1;
ALTER TABLE {t}_g1 ALTER COLUMN generation DROP DEFAULT;
ALTER TABLE {t}_g1 DROP CONSTRAINT {bare}_{holder}_pkey;
ALTER TABLE {t}_g1 ADD PRIMARY KEY (id, generation);
CREATE TABLE {t}_generations (LIKE {t}_g1 INCLUDING DEFAULTS) PARTITION BY LIST (generation);
ALTER TABLE {t}_generations ADD PRIMARY KEY (id, generation);
ALTER TABLE {t}_generations ATTACH PARTITION {t}_g1 FOR VALUES IN (1);
ALTER TABLE {t}_meta
    ADD COLUMN generation integer NOT NULL DEFAULT 1,
    ADD COLUMN opened_at bigint NOT NULL DEFAULT 0;
-- Closed generations, and how far the sweep has gone through each before it is dropped.
CREATE TABLE {t}_closed (
    generation integer PRIMARY KEY,
    due_at bigint NOT NULL DEFAULT 0,
    file oid,
    pages bigint NOT NULL DEFAULT 0,
    records bigint NOT NULL DEFAULT 0,
    fence bigint NOT NULL DEFAULT 0
);
