"""dbos behind the verb of the scenarios: a workflow without steps, on PostgreSQL."""

from __future__ import annotations

from typing import Any

from dbos import DBOS, SetWorkflowID

from . import handlers
from .peer import Guarded, Order, Protection


class Adapter:
    def __init__(self, url: str, name: str) -> None:
        DBOS(
            config={
                "name": "lab",
                "system_database_url": url,
                "log_level": "CRITICAL",
                "executor_id": name,
                "application_version": "1",
            }
        )
        # Known before the launch: what a crash left behind is then run again.
        self._workflows = {
            function: DBOS.workflow(name=function.__name__)(function)
            for function in handlers.FUNCTIONS.values()
        }
        DBOS.launch()

    def guard(self, function: Guarded, protection: Protection) -> Guarded:
        workflow = self._workflows[function]

        def call(order: Order) -> Any:
            with SetWorkflowID(f"{function.__name__}:{order['key']}"):
                return workflow(order)

        return call

    def close(self) -> None:
        DBOS.destroy()
