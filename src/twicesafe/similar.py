"""Near-duplicates: two requests under different keys that probably mean the same. It reports them,
and decides nothing.

    near = NearDuplicates(window="10m", observers=[LogObserver()], ask_user=ask)

    @receiver.idempotent(key="request_id")
    @near.watch
    def pay(request_id: str, text: str) -> str: ...

A user clicked twice, and the form made two keys; or an agent repeated a request in other words. A
receiver sees two keys and runs both. This module does not change that: it only reports the pair.
Amounts, numbers, dates, ids and names must be equal; prose may differ. It reports a pair as the
event `NearDuplicate`, in a metric, and by calling ``ask_user``.

``prose="meaning"`` compares prose with a small embedding model instead of word by word (the extra ``semantic``).

It takes no part in any decision. Its window is in this process and holds no readable text. Its own
failures are logged and never fail a call.
"""

from __future__ import annotations

import functools
import inspect
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, ParamSpec, TypeVar, overload

from ._core.handler_profile import profile_of
from ._core.similarity.reading import read_request
from ._core.similarity.window import SimilarityWindow
from ._runtime.embedding import load_embedding
from ._values.context import current_key
from ._values.keys import Key, KeyLike, as_key
from ._values.settings import Duration, expect, is_whole, seconds
from .errors import ConfigurationError
from .events import NearDuplicate, Observer, notifier

__all__ = ["NearDuplicate", "NearDuplicates"]

P = ParamSpec("P")
T = TypeVar("T")

_log: Final = logging.getLogger("twicesafe")
_THRESHOLDS: Final = {"words": 0.6, "meaning": 0.83}


class NearDuplicates:
    """Compares each new request with the recent ones of its scope. Thread-safe; one per process.

    ``window``: how long a request is remembered. ``prose``: compare prose by its words or by its
    meaning, which needs the extra ``semantic``. ``threshold``: report pairs whose prose is at least
    this similar, from 0 to 1; default: 0.6 for words and 0.83 for meaning. ``per_scope``,
    ``total``: how many requests are remembered. ``ask_user``: called with each `NearDuplicate`, in
    the caller's thread, so it must be quick; what it returns is ignored.
    """

    def __init__(
        self,
        *,
        window: Duration = 600,
        prose: Literal["words", "meaning"] = "words",
        threshold: float | None = None,
        per_scope: int = 200,
        total: int = 10_000,
        observers: Sequence[Observer] = (),
        ask_user: Callable[[NearDuplicate], object] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        length = seconds(window, "window")
        expect(length > 0, "window", window, "use more than 0 seconds")
        expect(prose in _THRESHOLDS, "prose", prose, "use words or meaning")
        threshold = _THRESHOLDS[prose] if threshold is None else threshold
        expect(_is_share(threshold), "threshold", threshold, "use more than 0 and at most 1")
        for name, limit in (("per_scope", per_scope), ("total", total)):
            expect(is_whole(limit), name, limit, "use 1 or more")
        if ask_user is not None and _is_async(ask_user):
            raise ConfigurationError(
                "ask_user must be a plain function: let it put the pair into your own queue"
            )
        self._embed = None if prose == "words" else load_embedding()
        self._window = SimilarityWindow(length, threshold, per_scope, total)
        told: tuple[Observer, ...] = () if ask_user is None else (ask_user,)  # type: ignore[assignment]
        self._notify = notifier((*observers, *told))
        self._clock = clock
        self._lock = threading.Lock()
        self._said_unread = False

    def __len__(self) -> int:
        """How many requests are remembered."""
        return len(self._window)

    def compare(self, key: KeyLike, request: object) -> NearDuplicate | None:
        """Remember this request, and return the earlier one that it resembles most, or None. It never raises.

        Call it before `process` if you want to ask the user before anything runs: what you do with
        the answer is your decision.
        """
        try:
            return self._compare(as_key(key), request)
        except Exception:
            _log.exception("near-duplicates: a request could not be compared; it runs as usual")
            return None

    def _compare(self, key: Key, request: object) -> NearDuplicate | None:
        reading = read_request(request, self._embed)
        if reading is None:
            if not self._said_unread:
                self._said_unread = True
                _log.warning(
                    "near-duplicates: the request of key %s is empty, too large or of an unknown type, so it is "
                    "not compared; pass request= a function that returns its text (said once)",
                    key.short,
                )
            return None
        with self._lock:
            match = self._window.compare(key, reading, self._clock())
        if match is None:
            return None
        found = NearDuplicate(key, match.earlier, match.score, match.age)
        self._notify(found)
        return found

    @overload
    def watch(self, handler: Callable[P, T]) -> Callable[P, T]: ...
    @overload
    def watch(
        self, *, request: Callable[..., object]
    ) -> Callable[[Callable[P, T]], Callable[P, T]]: ...
    def watch(self, handler: Any = None, *, request: Callable[..., object] | None = None) -> Any:
        """Compare each run of the handler before it starts. Put it under the receiver's decorator.

        It compares the arguments, or what ``request`` returns for them. Duplicates of a key do not
        reach the handler, and a re-run of a key is not compared again. Outside a receiver it does nothing.
        """
        if handler is None:
            return functools.partial(self.watch, request=request)
        content = request or functools.partial(_arguments, handler)

        def look(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            key = current_key()
            if key is None:
                return
            try:
                asked = content(*args, **kwargs)
            except Exception:
                _log.exception("near-duplicates: request= failed; the handler runs as usual")
            else:
                self.compare(key, asked)

        if _is_async(handler):

            @functools.wraps(handler)
            async def watched_async(*args: Any, **kwargs: Any) -> Any:
                look(args, kwargs)
                return await handler(*args, **kwargs)

            return watched_async

        @functools.wraps(handler)
        def watched(*args: Any, **kwargs: Any) -> Any:
            look(args, kwargs)
            return handler(*args, **kwargs)

        return watched


def _arguments(handler: Callable[..., Any], /, *args: Any, **kwargs: Any) -> dict[str, Any]:
    return profile_of(handler).named(args, kwargs)


def _is_share(value: object) -> bool:
    return isinstance(value, (int, float)) and 0 < value <= 1


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - of an object, its method
    )
