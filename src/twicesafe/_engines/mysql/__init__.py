"""MariaDB and MySQL, by PyMySQL, on the server's own clock.

    mysql://user:password@host:3306/database      or mariadb://…
    ?table=twicesafe&pool=10&timeout=5&migrate=false
    &ssl=prefer|off|require|verify&ssl_ca=/path/ca.pem&socket=/run/mysqld/mysqld.sock

    programs    what is asked of the server, as data: one statement per phase
    settings    the URL, and the driver's errors in our words
    connecting  one connection: how it is made, and what it does with a command
    storing     the stores: a pool for threads, one worker thread for event loops

On MariaDB a claim is one statement that inserts the record or returns the present one
(``INSERT … ON DUPLICATE KEY UPDATE … RETURNING``). MySQL has no RETURNING: there the loser of a
claim needs one more statement.
"""

from .store import AsyncMysqlStore, MysqlStore

__all__ = ["AsyncMysqlStore", "MysqlStore"]
