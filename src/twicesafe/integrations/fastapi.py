"""FastAPI: the claim as a dependency, and the key with its answers in OpenAPI.

    app = FastAPI()
    app.add_middleware(IdempotencyMiddleware, receiver=receiver, policy=policy)    # twicesafe.asgi
    describe(app, policy)

    @app.post("/charges")
    async def charge(order: Order, claim: RequestClaim) -> Charge: ...

`RequestClaim` is the claim that the request runs under, or None for a request without a key. `describe`
adds the policy to the OpenAPI document of each protected operation: the header, whether it is required,
the problem documents with their statuses, and the header that marks a replay. Other operations stay
unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import Depends, FastAPI

from .._core.http.policy import HttpPolicy
from .._core.http.problems import CASES
from .._core.http.rules import HttpRules
from .._values.context import ActiveClaim, current_claim
from ..errors import ConfigurationError

__all__ = ["RequestClaim", "describe"]


async def request_claim() -> ActiveClaim | None:
    """The claim of this request: its key, fence, attempt, and whether it is lost."""
    return current_claim()


RequestClaim = Annotated[ActiveClaim | None, Depends(request_claim)]

_CASES = (
    "key-missing",
    "key-invalid",
    "key-reused",
    "in-progress",
    "outcome-unknown",
    "result-not-kept",
    "request-too-large",
    "store-unavailable",
)
"""The cases in which the middleware itself answers."""

_SCHEMA = "IdempotencyProblem"
_PROBLEM: dict[str, Any] = {
    "title": _SCHEMA,
    "description": "A problem document (RFC 9457) of the idempotency layer.",
    "type": "object",
    "required": ["type", "title", "status", "detail", "retryable"],
    "properties": {
        "type": {"type": "string", "format": "uri-reference"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "retryable": {"type": "boolean"},
    },
}


def describe(app: FastAPI, policy: HttpPolicy | None = None) -> None:
    """Add this policy, which must be the middleware's, to the OpenAPI document of `app`."""
    if not isinstance(app, FastAPI):
        raise ConfigurationError(
            f"describe({app!r}) cannot be used: it needs a FastAPI application"
        )
    rules = HttpRules(policy or HttpPolicy())
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            document = plain()
            protected = list(_protected(document, rules))
            for operation, required in protected:
                _say(operation, required, rules)
            if protected:
                parts = document.setdefault("components", {}).setdefault("schemas", {})
                parts.setdefault(_SCHEMA, _PROBLEM)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi_schema = None
    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to extend it


def _protected(document: dict[str, Any], rules: HttpRules) -> Iterator[tuple[dict[str, Any], bool]]:
    for path, operations in document.get("paths", {}).items():
        for method, operation in operations.items():
            is_required = rules.requires_key(method.upper(), path)
            if is_required is not None:
                yield operation, is_required


def _say(operation: dict[str, Any], required: bool, rules: HttpRules) -> None:
    policy = rules.policy
    if policy.header is not None:
        operation["parameters"] = _parameters(operation, policy.header, required, policy)
    responses = operation.setdefault("responses", {})
    for status, titles in _answers(required, rules).items():
        content = responses.setdefault(str(status), {}).setdefault("content", {})
        content.setdefault(
            "application/problem+json", {"schema": {"$ref": f"#/components/schemas/{_SCHEMA}"}}
        )
        said = responses[str(status)].get("description", "")
        responses[str(status)]["description"] = ". ".join([said] * bool(said) + titles)
    if policy.replay_header is not None:
        for status, response in responses.items():
            if status.startswith("2"):
                response.setdefault("headers", {})[policy.replay_header] = {
                    "description": "true: this is the recorded first answer.",
                    "schema": {"type": "string", "enum": ["true"]},
                }


def _parameters(
    operation: dict[str, Any], header: str, required: bool, policy: HttpPolicy
) -> list[dict[str, Any]]:
    """The operation's own parameters, and the header of the key."""
    others: list[dict[str, Any]] = [
        each
        for each in operation.get("parameters", ())
        if each["in"] != "header" or each["name"].lower() != header.lower()
    ]
    return [
        *others,
        {
            "name": header,
            "in": "header",
            "required": required and not policy.key_from,
            "description": "New for each operation, the same for each retry of it: a repeat gets "
            "the first answer.",
            "schema": {"type": "string", "minLength": 1, "maxLength": policy.max_key},
        },
    ]


def _answers(required: bool, rules: HttpRules) -> dict[int, list[str]]:
    """The middleware's own answers: the titles for each status."""
    found: dict[int, list[str]] = {}
    for name in _CASES:
        if name != "key-missing" or required:
            case = CASES[name]
            found.setdefault(rules.statuses.get(name, case.status), []).append(case.title)
    return found
