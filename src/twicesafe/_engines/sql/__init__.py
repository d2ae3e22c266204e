"""What the SQL stores share: programs, commands, migrations, the outbox tables, a connection pool."""
