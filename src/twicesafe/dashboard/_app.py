"""The dashboard as an ASGI application: its routes, and what each page asks for.

Every request goes through the `SecurityMiddleware` (Host, headers), then `Visits` resolves access,
then its page is made. A page that changes something is a POST with the token of its form; its
answer says what really happened.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from importlib.resources import files
from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from .._core.health import Thresholds, thresholds_of
from .._edges.readable import visible
from ..errors import ConfigurationError, UsageError
from ..receiver import AsyncReceiver, Receiver
from ._access import ResolveAccess
from ._actions import KEY_ACTIONS, AppliedAction, KeyAction, on_one
from ._backend import Backend
from ._bulk_actions import AT_ONCE, dry_run, on_all
from ._failures import READ, failed_keys, failures_page
from ._filters import Filters
from ._forms import BadFormError, number, signed
from ._letters import LETTER_ACTIONS, Choice, LetterAction, act_on_letters, look
from ._lists import audit_rows, depth_facts, lane_rows, letter_rows
from ._login import SESSION_COOKIE
from ._overview import overview
from ._pages import When, key_page, key_row, keys_page
from ._running import consumer_rows, relay_facts, relay_rows
from ._security import LOOPBACK, SecurityMiddleware
from ._settings import checked_consumers
from ._visits import NoSuchRecordError, Visit, Visits

__all__ = ["Dashboard", "dashboard"]

PAGE: Final = 50
"""Keys on one page."""
UP_TO: Final = 10_000
"""Matches are counted up to here; a dry run counts all."""
AUDITED: Final = 200
"""Actions on the audit page."""
LETTERS: Final = 200
"""Dead letters that the list reads."""
REFRESH: Final = 10
"""Seconds between two loads of the live overview."""

_STATIC: Final = {"style.css": "text/css", "mark.svg": "image/svg+xml"}
_log = logging.getLogger("twicesafe.dashboard")


def dashboard(
    receiver: Receiver | AsyncReceiver,
    *,
    resolve_access: ResolveAccess,
    hosts: Iterable[str] = LOOPBACK,
    dead_letters: str | None = None,
    consumers: Iterable[str] = (),
    thresholds: Thresholds | None = None,
) -> Callable[[Any, Any, Any], Awaitable[None]]:
    """An ASGI application to mount.

    ``resolve_access``: a function of the request, which may be async; it returns "all", "read-only" or
    "forbidden", or an `Access` with the visitor's name. ``hosts``: the names under which browsers reach it;
    requests for any other are refused. ``dead_letters``: the URL of a consumer's dead topic, stream or queue.
    ``consumers``: the URLs of consumers; the page asks their brokers how far behind they are.
    """
    if not callable(resolve_access):
        raise ConfigurationError(
            "resolve_access must be a function of the request that returns 'all', 'read-only' or 'forbidden'"
        )
    urls = checked_consumers(consumers)
    backend = Backend(receiver, thresholds_of(thresholds), dead_letters, consumers=urls)
    return SecurityMiddleware(Dashboard(backend, resolve_access).app(), hosts)


class Dashboard(Visits):
    """The pages and their routes."""

    def app(self) -> Starlette:
        routes = [
            Route("/", self._page(self._overview)),
            Route("/keys", self._page(self._keys)),
            Route("/failures", self._page(self._failures)),
            Route("/keys/{id}", self._page(self._key)),
            Route(
                "/keys/{id}/{action}", self._page(self._act_on_one, changes=True), methods=["POST"]
            ),
            Route("/actions/{action}", self._page(self._dry_run, changes=True)),
            Route(
                "/actions/{action}", self._page(self._act_on_all, changes=True), methods=["POST"]
            ),
            Route("/outbox", self._page(self._outbox)),
            Route(
                "/outbox/{lane}/{action}", self._page(self._unpark, changes=True), methods=["POST"]
            ),
            Route("/running", self._page(self._running)),
            Route("/dead-letters", self._page(self._letters)),
            Route("/dead-letters/{action}", self._page(self._letters_dry_run, changes=True)),
            Route(
                "/dead-letters/{action}",
                self._page(self._act_on_letters, changes=True),
                methods=["POST"],
            ),
            Route("/audit", self._page(self._audit)),
            Route("/static/{name}", self._static),
        ]
        if self._login is not None:
            routes += [
                Route("/login", self._page(self._login_page, public=True)),
                Route("/login", self._page(self._enter, public=True), methods=["POST"]),
                Route("/logout", self._page(self._leave, public=True), methods=["POST"]),
            ]
        return Starlette(routes=routes, exception_handlers={HTTPException: self._http_error})

    # -- looking ------------------------------------------------------------------------------

    async def _overview(self, visit: Visit) -> Response:
        live = visit.request.query_params.get("live") == "yes"
        page = overview(await self._backend.look())
        trouble = [(When.of(row.at, visit.now), row) for row in page.trouble or ()]
        response = self._html(visit, "overview", page=page, live=live, trouble=trouble)
        if live:
            response.headers["refresh"] = str(REFRESH)
        return response

    async def _keys(self, visit: Visit) -> Response:
        filters, after = visit.filters(), visit.request.query_params.get("after", "")
        if filters.problem:
            page = keys_page(filters, [], "", visit.access, visit.now)
            return self._html(visit, "keys", page=page, status=400)
        backend = self._backend
        found, matched = await backend.counted_page(filters, PAGE, after, UP_TO)
        page = keys_page(
            filters,
            found.view(),
            found.after,
            visit.access,
            visit.now,
            unreadable=found.unreadable,
            stats=await backend.stats(),
            matched=matched,
            matched_up_to=UP_TO,
            is_first=not after,
        )
        return self._html(visit, "keys", page=page)

    async def _failures(self, visit: Visit) -> Response:
        filters = failed_keys(visit.filters())
        if filters.problem:
            raise UsageError(filters.problem)
        records, more = await self._backend.page(filters, READ)
        page = failures_page(filters, records, more, visit.access, visit.now)
        return self._html(visit, "failures", page=page)

    async def _key(self, visit: Visit) -> Response:
        record = await self._backend.with_steps(await self._record(visit))
        audit = await self._backend.audit(record)
        page = key_page(record, audit, self._backend.trouble, visit.access, visit.now)
        return self._html(visit, "key", page=page)

    async def _record(self, visit: Visit) -> Any:
        digits = visit.request.path_params["id"]
        try:
            id_ = bytes.fromhex(digits)
        except ValueError:
            id_ = b""
        record = await self._backend.record(id_) if len(id_) in (16, 32) else None
        if record is None:
            raise NoSuchRecordError
        return record

    async def _outbox(self, visit: Visit) -> Response:
        depth = await self._backend.depth()
        lanes = await self._backend.lanes() if depth is not None else []
        return self._html(
            visit,
            "outbox",
            facts=None if depth is None else depth_facts(depth),
            lanes=lane_rows(lanes, visit.access, visit.now),
        )

    async def _running(self, visit: Visit) -> Response:
        relays, depth = await self._backend.relays(), await self._backend.depth()
        asked = await self._backend.consumers()
        return self._html(
            visit,
            "running",
            facts=None if relays is None or depth is None else relay_facts(relays, depth),
            relays=() if relays is None else relay_rows(relays, visit.now),
            consumers=consumer_rows(asked),
        )

    async def _letters(self, visit: Visit) -> Response:
        if self._backend.letters_url is None:
            return self._html(visit, "letters", letters=None, choice=Choice())
        choice = Choice.read(visit.fields, visit.access)
        found, is_cut = await look(self._backend, choice, LETTERS)
        rows = letter_rows(found, visit.access)
        shown: dict[str, Any] = {"choice": choice, "actions": LETTER_ACTIONS.values()}
        return self._html(visit, "letters", letters=rows, read=LETTERS if is_cut else 0, **shown)

    async def _audit(self, visit: Visit) -> Response:
        entries = await self._backend.audit_log(AUDITED)
        rows = audit_rows(entries, visit.access, visit.now)
        return self._html(visit, "audit", rows=rows, most=AUDITED)

    async def _static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in _STATIC:
            raise HTTPException(404)
        path = files("twicesafe.dashboard").joinpath("static", name)
        return Response(path.read_bytes(), media_type=_STATIC[name])

    # -- acting -------------------------------------------------------------------------------

    async def _act_on_one(self, visit: Visit) -> Response:
        action = KEY_ACTIONS.get(visit.request.path_params["action"])
        if action is None:
            raise HTTPException(404)
        record = await self._record(visit)
        who = signed(visit.form, visit.access.user)
        result = await on_one(self._backend, action, record, who, visit.form)
        back = f"keys/{(result.record or record).id.hex()}"
        return self._result(visit, result, back, "Back to the key")

    def _bulk_action(self, visit: Visit) -> tuple[KeyAction, Filters]:
        action, filters = KEY_ACTIONS.get(visit.request.path_params["action"]), visit.filters()
        if action is None or not action.states:
            raise HTTPException(404)
        if filters.problem:
            raise BadFormError(filters.problem)
        return action, filters

    async def _dry_run(self, visit: Visit) -> Response:
        action, filters = self._bulk_action(visit)
        plan = await dry_run(self._backend, action, filters)
        return self._html(
            visit,
            "dry_run",
            plan=plan,
            rows=tuple(key_row(record, visit.access, visit.now) for record in plan.newest),
            at_once=AT_ONCE,
        )

    async def _act_on_all(self, visit: Visit) -> Response:
        action, filters = self._bulk_action(visit)
        who = signed(visit.form, visit.access.user)
        result = await on_all(self._backend, action, filters, who, visit.form)
        return self._result(visit, result, f"keys{filters.url()}", "Back to the keys")

    def _letter_action(self, visit: Visit) -> LetterAction:
        action = LETTER_ACTIONS.get(visit.request.path_params["action"])
        if action is None or self._backend.letters_url is None:
            raise HTTPException(404)
        return action

    async def _letters_dry_run(self, visit: Visit) -> Response:
        action, choice = self._letter_action(visit), Choice.read(visit.fields, visit.access)
        found, is_cut = await look(self._backend, choice)
        rows = letter_rows(found[:5], visit.access)
        shown: dict[str, Any] = {"action": action, "choice": choice, "count": len(found)}
        return self._html(visit, "letters_dry_run", rows=rows, is_cut=is_cut, **shown)

    async def _act_on_letters(self, visit: Visit) -> Response:
        action, choice = self._letter_action(visit), Choice.read(visit.fields, visit.access)
        who = signed(visit.form, visit.access.user)
        result = await act_on_letters(self._backend, action, choice, who, visit.form)
        return self._result(visit, result, "dead-letters", "Back to the dead letters")

    async def _unpark(self, visit: Visit) -> Response:
        lane, action = visit.request.path_params["lane"], visit.request.path_params["action"]
        if action not in ("retry", "skip"):
            raise HTTPException(404)
        who = signed(visit.form, visit.access.user)
        # A page may stay open for hours, and another message may be the refused one by now.
        since = number(visit.form["since"]) if "since" in visit.form else None
        done = await self._backend.unpark(lane, action == "skip", who.by, who.why, since)
        if done:
            _log.info("%s %s lane %s: %s", visible(who.by), action, lane[:32], visible(who.why))
            kept = (
                "The refused message is kept with your name and reason, and is never published."
                if action == "skip"
                else "Your name and reason are in the audit."
            )
            result = AppliedAction(
                changed=True,
                title="The lane continues"
                + (" after the refused message" if action == "skip" else ""),
                details=("A relay publishes its next message.", kept),
            )
        else:
            result = AppliedAction(
                changed=False,
                title="Nothing was changed",
                details=("This lane is not parked, or was parked again: look at it again.",),
            )
        return self._result(visit, result, "outbox", "Back to the outbox")

    def _result(self, visit: Visit, result: AppliedAction, back: str, words: str) -> Response:
        status = 200 if result.changed else 409
        return self._html(
            visit, "result", result=result, back=back, back_words=words, status=status
        )

    # -- login --------------------------------------------------------------------------------

    async def _login_page(self, visit: Visit) -> Response:
        return self._html(visit, "login", wrong="")

    async def _enter(self, visit: Visit) -> Response:
        assert self._login is not None
        request = visit.request
        address = request.client.host if request.client else ""
        throttle = self._login.throttle
        if wait := throttle.wait(address):
            response = self._html(
                visit,
                "login",
                wrong=f"Too many wrong tokens. Try again in {wait:.0f} s.",
                status=429,
            )
            response.headers["retry-after"] = f"{max(1, round(wait))}"
            return response
        cookie = self._login.enter(visit.form.get("secret", ""), address)
        if cookie is None:
            _log.warning("a wrong token from %s", address or "unknown")
            return self._html(visit, "login", wrong="This token is not right.", status=403)
        entered = RedirectResponse(visit.base, status_code=303)
        self._set_cookie(entered, request, SESSION_COOKIE, cookie)
        return entered

    async def _leave(self, visit: Visit) -> Response:
        assert self._login is not None
        self._login.leave(visit.request.cookies.get(SESSION_COOKIE))
        left = RedirectResponse(f"{visit.base}login", status_code=303)
        left.delete_cookie(SESSION_COOKIE, path=visit.request.scope.get("root_path", "") or "/")
        return left
