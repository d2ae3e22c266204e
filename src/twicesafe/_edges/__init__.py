"""What the HTTP edges (asgi, wsgi, Django, the proxy) share when they perform a keyed request."""
