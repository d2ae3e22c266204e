"""A visit: one request, from access to response, the same for every page.

access     resolved first; without it there is no page, and without "all" no action
forms      a POST is read only if it is a plain form of the dashboard: see `_security.refusal`
errors     of the library become pages that say what happened; they never show a key
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from .. import __version__
from .._edges.readable import visible
from ..errors import StoreError, TwicesafeError, UsageError
from ._access import FORBIDDEN, Access, ResolveAccess, checked
from ._backend import Backend
from ._filters import Filters
from ._forms import BadFormError
from ._login import Login
from ._security import FORM_COOKIE, new_token, refusal
from ._templates import render

__all__ = ["NoSuchRecordError", "Page", "Visit", "Visits"]

LARGEST_FORM: Final = 262_144

_WORDS: Final = {
    400: ("Not a form", "Nothing was changed: the form cannot be read, or has too many fields."),
    404: ("Not found", "There is no such page here."),
    405: ("Not allowed", "Nothing was changed: this page does not take this kind of request."),
    413: ("Too large", f"Nothing was changed: the form has more than {LARGEST_FORM:,} bytes."),
    415: ("Not a form", "Nothing was changed: send application/x-www-form-urlencoded."),
}
"""Title and text by status, for requests that no page of ours sends."""

Page = Callable[["Visit"], Awaitable[Response]]


class NoSuchRecordError(Exception):
    """The store has no record of the key that the page is about."""


@dataclass(slots=True)
class Visit:
    """One request: who it is, and what came with it."""

    request: Request
    access: Access
    form: dict[str, str]
    fields: list[tuple[str, str]]
    """The fields of the query and the form, in order: filters may have several of one name. What
    senders wrote is in the query of a form's address, because browsers change line ends in hidden
    fields."""
    token: str
    """For the forms of the page."""
    now: datetime

    @property
    def base(self) -> str:
        """The path under which it is mounted."""
        root: str = self.request.scope.get("root_path", "")
        return f"{root}/"

    def filters(self) -> Filters:
        return Filters.read(self.fields)


class Visits:
    """What every request goes through."""

    def __init__(
        self, backend: Backend, resolve_access: ResolveAccess, login: Login | None = None
    ) -> None:
        self._backend, self._resolve, self._login = backend, resolve_access, login

    def _page(self, page: Page, *, changes: bool = False, public: bool = False) -> Any:
        """A route's endpoint. ``changes``: only for those who may act. ``public``: without access."""

        async def endpoint(request: Request) -> Response:
            access = FORBIDDEN if public else await self._access(request)
            cookie = request.cookies.get(FORM_COOKIE, "")
            visit = Visit(request, access, {}, [], cookie or new_token(), datetime.now(UTC))
            if not public and not access.may_read:
                return self._forbidden(visit)
            if changes and not access.may_act:
                return self._sorry(visit, 403, "Read-only", "You have read-only access.")
            visit.fields = list(request.query_params.multi_items())
            if request.method == "POST":
                sent = await _form(request)
                if why := refusal(request.headers, cookie, dict(sent).get("token", "")):
                    return self._sorry(
                        visit, 403, "Nothing was changed", f"The form was refused: {why}."
                    )
                visit.fields += sent
                visit.form = dict(visit.fields)
            response = await self._guarded(page, visit)
            if not cookie:
                self._set_cookie(response, request, FORM_COOKIE, visit.token)
            return response

        return endpoint

    async def _guarded(self, page: Page, visit: Visit) -> Response:
        if self._backend.is_closed:
            words = "Its receiver is closed: this process is about to stop."
            return self._sorry(visit, 503, "The dashboard is closed", words)
        try:
            return await page(visit)
        except NoSuchRecordError:
            words = (
                "There is no record of this key. It may have been swept, or the link is incomplete."
            )
            return self._sorry(visit, 404, "No such key", words)
        except BadFormError as error:
            return self._sorry(visit, 422, "The form is not complete", str(error))
        except UsageError as error:
            return self._sorry(visit, 400, "That does not work", visible(str(error)))
        except StoreError as error:
            return self._sorry(visit, 503, "The store does not answer", visible(str(error)))
        except TwicesafeError as error:
            return self._sorry(visit, error.http_status, "That did not work", visible(str(error)))

    async def _access(self, request: Request) -> Access:
        answer = self._resolve(request)
        if inspect.isawaitable(answer):
            answer = await answer
        return checked(answer)

    def _forbidden(self, visit: Visit) -> Response:
        if self._login is not None and visit.request.method in ("GET", "HEAD"):
            return RedirectResponse(f"{visit.base}login", status_code=303)
        return self._sorry(visit, 403, "Forbidden", "You have no access to this dashboard.")

    async def _http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        visit = Visit(request, FORBIDDEN, {}, [], "", datetime.now(UTC))
        title, words = _WORDS.get(error.status_code, ("That did not work", error.detail))
        response = self._sorry(visit, error.status_code, title, words)
        response.headers.update(error.headers or {})  # resolve_access may ask for a password
        return response

    def _sorry(self, visit: Visit, status: int, title: str, words: str) -> Response:
        return self._html(visit, "message", status=status, title=title, words=words)

    def _html(self, visit: Visit, name: str, *, status: int = 200, **shown: Any) -> HTMLResponse:
        body = render(
            name,
            base=visit.base,
            access=visit.access,
            token=visit.token,
            here=name,
            place=self._backend.place if visit.access.may_read else "",
            has_outbox=self._backend.has_outbox,
            has_letters=self._backend.letters_url is not None,
            has_running=self._backend.has_outbox or bool(self._backend.consumer_urls),
            has_login=self._login is not None,
            version=__version__,
            **shown,
        )
        return HTMLResponse(body, status)

    def _set_cookie(self, response: Response, request: Request, name: str, value: str) -> None:
        response.set_cookie(
            name,
            value,
            path=request.scope.get("root_path", "") or "/",
            secure=_came_by_tls(request),
            httponly=True,
            samesite="strict",
        )


def _came_by_tls(request: Request) -> bool:
    """Whether the browser uses https, even if a proxy ends it. Fields of the request are believed here: a
    sender who invents one only gets a cookie that its own browser keeps from plain http."""
    passed_on = request.headers.get("x-forwarded-proto", "").strip().lower()
    is_own = request.headers.get("origin", "").lower().startswith("https://")
    return request.url.scheme == "https" or passed_on == "https" or is_own


async def _form(request: Request) -> list[tuple[str, str]]:
    """The fields of a plain form. Anything larger or of another kind is refused."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise HTTPException(415)
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_FORM:
            raise HTTPException(413)
    try:
        text = body.decode("ascii")
        return parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=100)
    except ValueError:
        raise HTTPException(400) from None
