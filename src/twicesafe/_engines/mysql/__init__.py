"""MariaDB and MySQL, with PyMySQL, on the server's clock.

    mysql://user:password@host:3306/database      or mariadb://…
    ?table=twicesafe&pool=10&timeout=5&migrate=false
    &ssl=prefer|off|require|verify&ssl_ca=/path/ca.pem&socket=/run/mysqld/mysqld.sock

    settings         the URL, and what an error means
    store            the stores: a pool for threads, one worker thread for event loops
    connection       one connection: how it is opened, and how it runs a command
    schema, doctor   creates and checks the tables; checks the server
    programs         the requests: one statement each, for one request or for many
    one_column       the record that a claim returns, as one column
    owner_updates    the SQL of complete, fail and renew
    sweep            how expired records are deleted, and why fences never restart
    row_lookup       how rows are locked by number without waiting for other rows
    in_transaction   the record in the caller's transaction
    outbox_programs  the outbox in the caller's database
    run_programs     durable runs

On MariaDB a claim is one statement that inserts the record or returns the existing one
(``INSERT … ON DUPLICATE KEY UPDATE … RETURNING``). MySQL has no RETURNING, so a claim that does not
win needs one more statement.
"""

from .store import AsyncMysqlStore, MysqlStore

__all__ = ["AsyncMysqlStore", "MysqlStore"]
