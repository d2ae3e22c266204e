"""Django REST framework: views authenticate users themselves, so a hook checks again before a replay.

python drf_shop.py runserver        or gunicorn drf_shop:wsgi
"""

import json
import sys

import django
from django.conf import settings

from twicesafe.http import HttpPolicy, HttpRequest, StoredResponse

TOKENS = {"Token a": "ana", "Token b": "ben"}


def still_allowed(request: HttpRequest, stored: StoredResponse) -> StoredResponse:
    """Views check tokens, and a replay runs no view: who is asking is checked here."""
    if request.header("authorization") in TOKENS:
        return stored
    return StoredResponse(401, ((b"content-type", b"application/json"),), b'{"detail":"who?"}')


settings.configure(
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="change me",
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "rest_framework"],
    MIDDLEWARE=["twicesafe.integrations.django.IdempotencyMiddleware"],
    TWICESAFE={"store": "sqlite:///keys.db", "policy": HttpPolicy(on_replay=still_allowed)},
    USE_TZ=True,
)
django.setup()

from django.core.management import execute_from_command_line  # noqa: E402 - after the settings
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.test import Client  # noqa: E402
from django.urls import path  # noqa: E402
from rest_framework import authentication, exceptions, permissions, serializers  # noqa: E402
from rest_framework.response import Response  # noqa: E402
from rest_framework.views import APIView  # noqa: E402

charges: list[str] = []


class Member:
    is_authenticated = True

    def __init__(self, name: str) -> None:
        self.name = name


class ByToken(authentication.BaseAuthentication):
    def authenticate(self, request):
        name = TOKENS.get(request.headers.get("Authorization", ""))
        if name is None:
            raise exceptions.AuthenticationFailed("who?")
        return Member(name), None

    def authenticate_header(self, request):
        return "Token"


class Order(serializers.Serializer):
    cents = serializers.IntegerField(min_value=1)


class Charges(APIView):
    authentication_classes = [ByToken]  # noqa: RUF012 - as DRF wants it
    permission_classes = [permissions.IsAuthenticated]  # noqa: RUF012

    def post(self, request):
        order = Order(data=request.data)
        order.is_valid(raise_exception=True)
        charges.append(request.user.name)
        return Response({"charge": len(charges)}, 201)


urlpatterns = [path("charges", Charges.as_view())]
wsgi = get_wsgi_application()


def main() -> None:
    shop = Client()

    def post(token: str, cents: int, key: str) -> str:
        headers = {"Authorization": f"Token {token}", "Idempotency-Key": key}
        body = json.dumps({"cents": cents})
        reply = shop.post("/charges", body, "application/json", headers=headers)
        again = ", again" if reply.headers.get("Idempotent-Replayed") else ""
        return f"{reply.status_code}{again}: {reply.content.decode()[:60]}"

    print("ana:                  ", post("a", 500, "order-7"))
    print("ana, again:           ", post("a", 500, "order-7"))
    print("ben, with the key:    ", post("b", 500, "order-7"))
    print("not valid:            ", post("a", 0, "order-8"))
    print("no user:              ", post("x", 500, "order-9"))
    del TOKENS["Token a"]
    print("ana's token, revoked: ", post("a", 500, "order-7"))
    assert charges == ["ana", "ben"]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        execute_from_command_line(sys.argv)
    else:
        main()
