"""What people and programs do with a durable run: send it a signal, skip a step, start it again.

    receiver.signal(checkout.key(order), "approval", True)
    receiver.skip(key, "ship", by="ann", why="the parcel went out by hand")

`AsyncRunOperators` is the async version of `RunOperators`. Both are part of the receiver.
"""

from __future__ import annotations

from typing import Any

from .._values.keys import KeyLike
from ._operator_flows import OperatorFlows

__all__ = ["AsyncRunOperators", "RunOperators"]


class RunOperators(OperatorFlows):
    """The methods of `Receiver` that change a durable run."""

    def signal(
        self,
        key: KeyLike,
        name: str,
        value: object = True,
        *,
        by: str = "",
        why: str = "",
        returns: Any = Any,
    ) -> bool:
        """Send a value to a run that waits for it, or will: ``steps.wait(name)`` returns it.

        Returns True if the value was kept, False if the run has ended or already has a value of
        this name, which stays. ``returns``: the type of the value, if it is not plain data. ``by``
        and ``why``: for the audit trail, if an operator sends it.
        """
        return self._runtime.run(self._signal(self.key(key), name, value, returns, by, why))  # type: ignore[no-any-return]

    def skip(
        self,
        key: KeyLike,
        step: str,
        value: object = None,
        *,
        by: str,
        why: str = "",
        fence: int | None = None,
        returns: Any = Any,
    ) -> None:
        """Record a step of a held or parked run by hand, and let the run continue.

        In a run that is being undone, the undo of the step is skipped. In a held run, ``value``
        becomes the result of the step whose outcome is unknown. ``returns``: its type, if it is not
        plain data. ``fence``: only if the record still has the fence that you saw (`Record.fence`).
        """
        self._runtime.run(self._skip(self.key(key), step, value, by, why, returns, fence))

    def restart(
        self,
        key: KeyLike,
        *,
        by: str,
        why: str = "",
        force: bool = False,
        fence: int | None = None,
    ) -> None:
        """Release a run and drop its recorded steps: it starts from the beginning, effects included.

        ``fence``: only if the record still has the fence that you saw (`Record.fence`).
        """
        self._runtime.run(self._restart(self.key(key), by, why, force, fence))


class AsyncRunOperators(OperatorFlows):
    """The methods of `AsyncReceiver` that change a durable run."""

    async def signal(
        self,
        key: KeyLike,
        name: str,
        value: object = True,
        *,
        by: str = "",
        why: str = "",
        returns: Any = Any,
    ) -> bool:
        """Send a value to a run that waits for it, or will: ``steps.wait(name)`` returns it.

        Returns True if the value was kept, False if the run has ended or already has a value of
        this name, which stays. ``returns``: the type of the value, if it is not plain data. ``by``
        and ``why``: for the audit trail, if an operator sends it.
        """
        return await self._runtime.run(self._signal(self.key(key), name, value, returns, by, why))  # type: ignore[no-any-return]

    async def skip(
        self,
        key: KeyLike,
        step: str,
        value: object = None,
        *,
        by: str,
        why: str = "",
        fence: int | None = None,
        returns: Any = Any,
    ) -> None:
        """Record a step of a held or parked run by hand, and let the run continue.

        In a run that is being undone, the undo of the step is skipped. In a held run, ``value``
        becomes the result of the step whose outcome is unknown. ``returns``: its type, if it is not
        plain data. ``fence``: only if the record still has the fence that you saw (`Record.fence`).
        """
        await self._runtime.run(self._skip(self.key(key), step, value, by, why, returns, fence))

    async def restart(
        self,
        key: KeyLike,
        *,
        by: str,
        why: str = "",
        force: bool = False,
        fence: int | None = None,
    ) -> None:
        """Release a run and drop its recorded steps: it starts from the beginning, effects included.

        ``fence``: only if the record still has the fence that you saw (`Record.fence`).
        """
        await self._runtime.run(self._restart(self.key(key), by, why, force, fence))
