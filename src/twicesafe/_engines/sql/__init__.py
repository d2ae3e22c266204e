"""What the SQL stores share: programs, commands, migrations, the outbox tables, a connection pool.

programs               the requests about one record: load, decide, save
commands               what programs yield (queries, changes), and rows as records
searching              the requests about many records: browse, count, the audit log
in_transaction         the record in the caller's transaction
outbox_programs        the outbox, for operators and for `add`
outbox_relay_programs  the outbox, for relays
outbox_statements      the statements of relays, as text
outbox_dialect         what differs between engines: the clock, locks, lists
run_programs           durable runs; `run_upkeep` for the completer, `step_rows` for their steps
migrations, layouts    numbered schema files, and the layout that each version has
moving                 moves records out of the table of an older version
connection_pool        connections for the threads of one process
"""
