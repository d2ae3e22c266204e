"""The project with Django's admin, and one visit of a superuser: run as a script, it prints what it saw."""

from __future__ import annotations

import os
from zoneinfo import ZoneInfo

from tests.inbox.project.settings import *  # noqa: F403

INSTALLED_APPS = [
    "django.contrib.admin", "django.contrib.auth", "django.contrib.contenttypes",
    "django.contrib.messages", "django.contrib.sessions", "twicesafe.integrations.django_inbox",
]  # fmt: skip
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "tests.inbox.project.admin_urls"
STATIC_URL = "/static/"


def visit() -> None:
    import django

    django.setup()
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.db import connection, transaction
    from django.test import Client, override_settings
    from django.utils.formats import date_format

    from twicesafe._values.records import moment
    from twicesafe.integrations.django_inbox import open_inbox, open_outbox
    from twicesafe.integrations.django_inbox.models import OutboxMessage, Record

    call_command("migrate", verbosity=0)
    call_command("makemigrations", check=True, dry_run=True)
    call_command("check")
    inbox, outbox = open_inbox(consumer="billing"), open_outbox()
    with transaction.atomic():
        assert inbox.accept(connection, "secret-message-1")
        outbox.add(connection, topic="payments", body={"id": "secret-body"}, key="secret-key")
    User.objects.create_superuser("ana", password="a long password")
    client = Client()
    client.login(username="ana", password="a long password")
    one = f"outboxmessage/{OutboxMessage.objects.get().pk}/change/"
    home = client.get("/admin/").content.decode()
    print("home", home.count("/admin/twicesafe/"))
    for page in ("record/", "record/?state=1", "record/?state=4", "outboxmessage/", one):
        answer = client.get(f"/admin/twicesafe/{page}")
        text = answer.content.decode()
        rows = text.count('class="field-attempt') + text.count('class="field-slot')
        print(
            page.replace(one, "one"),
            answer.status_code,
            rows,
            "completed" in text,
            "secret" in text,
        )
    with override_settings(USE_TZ=False, TIME_ZONE="Asia/Tokyo"):
        local = moment(Record.objects.get().changed_at).astimezone(ZoneInfo("Asia/Tokyo"))
        text = client.get("/admin/twicesafe/record/").content.decode()
        print("local time", date_format(local, "DATETIME_FORMAT") in text)
    for page in ("record/add/", "outboxmessage/add/", "outboxmessage/1/delete/"):
        print(page, client.post(f"/admin/twicesafe/{page}", {}).status_code)
    inbox.close()
    outbox.close()


if __name__ == "__main__":
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.inbox.project.admin_site"
    visit()
