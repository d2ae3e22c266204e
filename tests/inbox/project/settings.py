"""The environment names the database: DATABASE holds an entry of DATABASES as JSON."""

from __future__ import annotations

import json
import os

if os.environ.get("DATABASE_DRIVER") == "pymysql":
    import pymysql

    pymysql.version_info = (2, 2, 7, "final", 0)  # type: ignore[assignment]
    pymysql.install_as_MySQLdb()  # type: ignore[no-untyped-call]

SECRET_KEY = "only for tests"
USE_TZ = True
INSTALLED_APPS = ["twicesafe.integrations.django_inbox", "tests.inbox.project.payments"]
DATABASES = {"default": {"ATOMIC_REQUESTS": True, **json.loads(os.environ["DATABASE"])}}
ROOT_URLCONF = "tests.inbox.project.payments.handling"
ALLOWED_HOSTS = ["*"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
