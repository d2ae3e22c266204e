"""Source mutants of the migration of records: moves, refusals, and the layouts of Redis."""

from __future__ import annotations

from .registry import break_source

MOVED = "tests/stores/test_migration.py"
REDIS = "tests/stores/test_redis_layouts.py"

break_source(
    "migration: a request does not fetch its record",
    bug="a key whose record was not moved yet runs again",
    file="_engines/sqlite/programs.py",
    old="            yield from self.moves.fetch((ask.id,))\n",
    new="            yield from ()\n",
    tests=[f"{MOVED}::test_keys_run_once_while_a_migration_moves_them[sqlite]"],
)
break_source(
    "migration: a move leaves the record in both tables",
    bug="a record that was moved is moved again, over what happened since",
    file="_engines/sql/moving.py",
    old='        yield Change(f"DELETE FROM {self._wide} WHERE {which}")\n',
    new="        yield from ()\n",
    tests=[f"{MOVED}::test_a_migration_changes_nothing_that_can_be_seen[sqlite]"],
)
break_source(
    "migration: an inbox does not fetch",
    bug="an inbox runs a message again whose record was not moved yet",
    file="_engines/sql/in_transaction.py",
    old="            yield from self.programs.moves.fetch([ask.id for ask in asks])\n",
    new="            yield from ()\n",
    tests=[f"{MOVED}::test_an_inbox_moves_its_records_in_the_callers_transaction[postgres]"],
)
break_source(
    "migration: postgresql moves a record without its audit trail",
    bug="who released a key and why is lost",
    file="_engines/postgresql/moving.py",
    old="FROM gone WHERE a.id = gone.id)",
    new="FROM gone WHERE a.id = gone.id AND false)",
    tests=["tests/conformance/test_postgresql.py::TestMoving::test_each_key_has_its_own_trail"],
)
break_source(
    "migration: a node goes back to an older layout",
    bug="a thread that read the layout earlier than another one undoes what that one found",
    file="_engines/postgresql/store.py",
    old="        if layout.version > self.programs.layout.version:\n",
    new="        if layout.version >= self.programs.layout.version or True:\n",
    tests=[f"{MOVED}::test_a_layout_that_was_read_too_early_is_not_used"],
)
break_source(
    "migration: opening migrates an existing store",
    bug="the first new node of a deployment stops all old ones",
    file="_engines/sql/migrations.py",
    old="        return version or self.newest\n",
    new="        return self.newest\n",
    tests=[f"{MOVED}::test_opening_leaves_the_layout_as_it_is[sqlite]"],
)
break_source(
    "redis: an existing store gets compact records",
    bug="nodes of the first version refuse what a new node writes, before anyone migrated",
    file="_engines/redis/key_scans.py",
    old="        if reply is None and (yield from self._is_new()):\n",
    new="        if reply is None:\n",
    tests=[f"{REDIS}::test_an_existing_store_keeps_the_first_layout_until_it_is_migrated"],
)
break_source(
    "redis: a compact record forgets when it was created",
    bug="the times of a compact record are counted from the wrong start",
    file="_engines/redis/lua/record.lua",
    old="    row.created = math.floor(row.fence / 1000)\n",
    new="    row.created = now\n",
    tests=[f"{REDIS}::test_both_layouts_say_the_same"],
)
