"""A receiver of Shopify's webhooks. The key is `X-Shopify-Webhook-Id`, which a retry repeats.

Do not use `X-Shopify-Event-Id`: all topics that one action of a merchant triggers share it, so it would
drop the second topic. Shopify waits five seconds for an answer. A delivery that comes while the first
is still running gets 409, and Shopify sends it again later."""

import base64
import hashlib
import hmac
import io
import json
import threading
import urllib.error
import urllib.request
from wsgiref.simple_server import WSGIRequestHandler, make_server

from twicesafe import Receiver
from twicesafe.http import HttpPolicy
from twicesafe.wsgi import IdempotencyMiddleware

SECRET = b"hush"
shipped: list[int] = []


def handle(environ, start_response):
    order = json.load(environ["wsgi.input"])
    if environ["HTTP_X_SHOPIFY_TOPIC"] == "orders/paid":
        shipped.append(order["id"])
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"ok"]


def signature(body: bytes, secret: bytes = SECRET) -> str:
    return base64.b64encode(hmac.new(secret, body, hashlib.sha256).digest()).decode()


def signed(app):
    def check(environ, start_response):
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        given = environ.get("HTTP_X_SHOPIFY_HMAC_SHA256", "").encode("latin-1")
        if not hmac.compare_digest(signature(body).encode(), given):  # as text, it raises on "é"
            start_response("401 Unauthorized", [("Content-Type", "text/plain")])
            return [b"not from Shopify"]
        environ["wsgi.input"] = io.BytesIO(body)
        return app(environ, start_response)

    return check


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


def deliver(webhook: str, topic: str, secret: bytes = SECRET) -> str:
    body = json.dumps({"id": 820982911946154508}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}/shopify", body)
    request.add_header("Content-Type", "application/json")
    request.add_header("X-Shopify-Topic", topic)
    request.add_header("X-Shopify-Webhook-Id", webhook)
    request.add_header("X-Shopify-Event-Id", "98880550-7158-44d4-b7cd-2c97c8a091b5")
    request.add_header("X-Shopify-Hmac-Sha256", signature(body, secret))
    try:
        with urllib.request.urlopen(request) as reply:
            return f"{reply.status}, {'again' if reply.headers['Idempotent-Replayed'] else 'first'}"
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.code}, {error.read().decode()}"


with Receiver.open("sqlite:///events.db") as receiver:
    policy = HttpPolicy.webhook("shopify")
    app = signed(IdempotencyMiddleware(handle, receiver=receiver, policy=policy))
    with make_server("127.0.0.1", 0, app, handler_class=Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        created, paid = (
            "b54557e4-bdd9-4b37-8a5f-bf7d70bcd043",
            "0f1ef8a7-5f41-4b8a-9d19-1ad4f0a1b3f2",
        )
        print("forged:       ", deliver(paid, "orders/paid", secret=b"guessed"))
        print("delivered:    ", deliver(created, "orders/create"))
        print("another topic:", deliver(paid, "orders/paid"))
        print("delivered again:", deliver(paid, "orders/paid"))
        server.shutdown()

assert shipped == [820982911946154508]
print("handled:", shipped)
