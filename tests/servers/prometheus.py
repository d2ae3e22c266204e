"""Prometheus from apt: scrapes one address and applies one file of rules."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from typing import Any

from tests.servers.process import Server, find_program

CONFIG = """
global: {{scrape_interval: 200ms, evaluation_interval: 200ms}}
rule_files: [{rules}]
scrape_configs: [{{job_name: shop, static_configs: [{{targets: ["{target}"]}}]}}]
"""


class Prometheus(Server):
    name = "prometheus"

    def __init__(self, target: str = "127.0.0.1:1", rules: str = "") -> None:
        self._program = find_program("prometheus", remedy="apt install prometheus")
        super().__init__()
        self._target, self._rules = target, rules
        self.url = f"http://127.0.0.1:{self.port}"

    def prepare(self) -> None:
        text = CONFIG.format(target=self._target, rules=json.dumps(self._rules))
        (self.folder / "prometheus.yml").write_text(text)

    def command(self) -> Sequence[str]:
        return [
            self._program,
            f"--config.file={self.folder}/prometheus.yml",
            f"--storage.tsdb.path={self.folder}/data",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn",
        ]

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=1) as reply:
                return bool(reply.status == 200)
        except urllib.error.HTTPError as starting:
            starting.close()
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        asked = urllib.parse.urlencode({"query": expression})
        return self._get(f"query?{asked}")["result"]

    def alerts(self) -> list[dict[str, Any]]:
        return self._get("alerts")["alerts"]

    def _get(self, what: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/api/v1/{what}", timeout=5) as reply:
            return json.load(reply)["data"]


def promtool() -> str:
    """The checker of rules that comes with Prometheus."""
    return find_program("promtool", remedy="apt install prometheus")
