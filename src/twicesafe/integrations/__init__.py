"""Integrations: adapters in the form that each framework expects. Each module needs its framework.

    fastapi    the claim as a dependency, the key and its answers in OpenAPI
    django     the layer as a line in MIDDLEWARE, with WSGI and with ASGI
    django_inbox   an app: the inbox in Django's own database, with its migration
    alembic    the inbox's tables as a revision

Starlette, Litestar, Flask and all others take `twicesafe.asgi` and `twicesafe.wsgi` as they are.
"""
