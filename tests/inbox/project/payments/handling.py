"""A module of the shop, as users write it: inbox and outbox are made while it is imported."""

from __future__ import annotations

from typing import Any

from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path

from tests.inbox.project.payments.models import Payment
from twicesafe.integrations.django_inbox import open_inbox, open_outbox

inbox = open_inbox(consumer="shop")
outbox = open_outbox()


def receive(message: dict[str, Any]) -> None:
    with transaction.atomic():
        if inbox.accept(connection, message["id"]):
            Payment.objects.create(amount=message["amount"])
            outbox.add(connection, topic="payments", body=message)


def plain(request: HttpRequest) -> HttpResponse:
    """With ATOMIC_REQUESTS the request is the transaction."""
    if inbox.accept(connection, "r-1"):
        Payment.objects.create(amount=1)
    return HttpResponse("paid")


def fails(request: HttpRequest) -> HttpResponse:
    if inbox.accept(connection, "r-2"):
        Payment.objects.create(amount=2)
    raise RuntimeError("rolled back")


@transaction.non_atomic_requests
def on_its_own(request: HttpRequest) -> HttpResponse:
    inbox.accept(connection, "r-3")
    return HttpResponse("never")


urlpatterns = [path("plain", plain), path("fails", fails), path("on-its-own", on_its_own)]
