"""Django: the middleware under WSGI and ASGI, with a view that is one transaction.

    python django_shop.py runserver        or gunicorn django_shop:wsgi
                                           or uvicorn django_shop:asgi

A project keeps its settings in a separate file; here everything is in one file.
"""

import json
import sys

import django
from django.conf import settings

settings.configure(
    ALLOWED_HOSTS=["*"],
    SECRET_KEY="change me",
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=[
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "django.contrib.sessions",
    ],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": "shop.db",
            "ATOMIC_REQUESTS": True,
            "OPTIONS": {"transaction_mode": "IMMEDIATE"},
        }
    },
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "twicesafe.integrations.django.IdempotencyMiddleware",
    ],
    # With ATOMIC_REQUESTS a view that raised has done nothing here: a retry may run it again.
    TWICESAFE={"store": "sqlite:///keys.db", "policy": {"retry": ("POST /transfers",)}},
    USE_TZ=True,
)
django.setup()

from django.core.asgi import get_asgi_application  # noqa: E402 - after the settings
from django.core.management import execute_from_command_line  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.db import connection  # noqa: E402
from django.http import HttpRequest, JsonResponse  # noqa: E402
from django.test import Client  # noqa: E402
from django.urls import path  # noqa: E402

from twicesafe import current_claim  # noqa: E402


def insert(cents: int) -> int:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS charges (id INTEGER PRIMARY KEY, cents INTEGER)")
        cursor.execute("INSERT INTO charges (cents) VALUES (%s)", [cents])
        return cursor.lastrowid


def charge(request: HttpRequest) -> JsonResponse:
    claim = current_claim()
    number = insert(json.loads(request.body)["cents"])
    return JsonResponse({"charge": number, "attempt": claim and claim.attempt}, status=201)


def transfer(request: HttpRequest) -> JsonResponse:
    """Fails at its first attempt, after it wrote: the transaction takes it back."""
    claim = current_claim()
    number = insert(json.loads(request.body)["cents"])
    if claim is not None and claim.attempt == 1:
        raise ConnectionError("no answer from the bank")
    return JsonResponse({"charge": number, "attempt": claim and claim.attempt}, status=201)


urlpatterns = [path("charges", charge), path("transfers", transfer)]
wsgi = get_wsgi_application()
asgi = get_asgi_application()


def main() -> None:
    shop = Client(raise_request_exception=False)

    def post(where: str, cents: int, key: str) -> str:
        body, kind = json.dumps({"cents": cents}), "application/json"
        reply = shop.post(where, body, kind, headers={"Idempotency-Key": key})
        again = ", again" if reply.headers.get("Idempotent-Replayed") else ""
        return f"{reply.status_code}{again}: {' '.join(reply.content.decode().split())[:60]}"

    print("the request:          ", post("/charges", 500, "order-7"))
    print("the same again:       ", post("/charges", 500, "order-7"))
    print("another one:          ", post("/charges", 900, "order-7"))
    print("an exception, undone: ", post("/transfers", 300, "order-8"))
    print("its retry runs:       ", post("/transfers", 300, "order-8"))
    with connection.cursor() as cursor:
        cursor.execute("SELECT cents FROM charges ORDER BY id")
        assert cursor.fetchall() == [(500,), (300,)]
    connection.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        execute_from_command_line(sys.argv)
    else:
        main()
