"""PgBouncer from apt, in front of a PostgreSQL of the tests, pooling by transaction unless a test says otherwise.

Two server connections for all clients, so that two statements of one client soon meet two servers.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from tests.servers.postgres import Postgres
from tests.servers.process import Server, find_program


class PgBouncer(Server):
    name = "pgbouncer"

    def __init__(self, behind: Postgres, pool: int = 2, mode: str = "transaction") -> None:
        self._program = find_program("pgbouncer", remedy="apt install pgbouncer")
        super().__init__()
        self._behind, self.mode = behind, mode
        self.url = self.url_of("postgres")
        (self.folder / "pgbouncer.ini").write_text(
            f"""[databases]
* = host=127.0.0.1 port={behind.port} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self.port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
default_pool_size = {pool}
max_client_conn = 500
"""
        )

    def url_of(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def command(self) -> Sequence[str]:
        # It refuses to be root. Its other user cannot read the settings, so the folder is opened to all.
        if os.geteuid() == 0:
            for path in (self.folder, self.folder / "pgbouncer.ini"):
                path.chmod(0o755)
            return [self._program, "-u", "nobody", str(self.folder / "pgbouncer.ini")]
        return [self._program, str(self.folder / "pgbouncer.ini")]

    def answers(self) -> bool:
        import psycopg

        with psycopg.connect(self.url, autocommit=True, connect_timeout=60) as connection:
            connection.execute("SELECT 1")
        return True
