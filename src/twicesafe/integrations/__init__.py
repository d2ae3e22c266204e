"""Integrations: what a framework asks for in its own shape. Each module needs its framework.

    fastapi    the claim as a dependency, the key and its answers in OpenAPI
    django     the layer as a line in MIDDLEWARE, with WSGI and with ASGI

Starlette, Litestar, Flask and all others take `twicesafe.asgi` and `twicesafe.wsgi` as they are.
"""
