"""A receiver of Stripe's events: signed, delivered several times, handled once by their `id`.

The signature is checked before the key. Use Stripe's own library for that; the check here shows the
scheme in a few lines: an HMAC of time and body, and a time limit."""

import hashlib
import hmac
import io
import json
import re
import threading
import time
import urllib.error
import urllib.request
from wsgiref.simple_server import WSGIRequestHandler, make_server

from twicesafe import Receiver
from twicesafe.http import HttpPolicy
from twicesafe.wsgi import IdempotencyMiddleware

SECRET = b"whsec_example"
paid: list[str] = []


def handle(environ, start_response):
    event = json.load(environ["wsgi.input"])
    if event["type"] == "payment_intent.succeeded":
        paid.append(event["data"]["object"]["id"])
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"thank you"]


def is_signed(header: str, body: bytes) -> bool:
    parts = [part.strip().partition("=")[::2] for part in header.split(",")]
    times = [value for name, value in parts if name == "t"]
    if len(times) != 1 or not re.fullmatch("[0-9]{1,12}", times[0]):
        return False
    made = hmac.new(SECRET, times[0].encode() + b"." + body, hashlib.sha256).hexdigest().encode()
    given = [value.encode("latin-1") for name, value in parts if name == "v1"]  # two in a rotation
    recent = abs(time.time() - int(times[0])) < 300
    return recent and any(hmac.compare_digest(made, one) for one in given)


def signed(app):
    def check(environ, start_response):
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if not is_signed(environ.get("HTTP_STRIPE_SIGNATURE", ""), body):
            start_response("400 Bad Request", [("Content-Type", "text/plain")])
            return [b"not from Stripe"]
        environ["wsgi.input"] = io.BytesIO(body)
        return app(environ, start_response)

    return check


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


def deliver(event: dict, secret: bytes = SECRET) -> str:
    """What Stripe does: each delivery has a time and its own signature."""
    body, now = json.dumps(event).encode(), str(int(time.time())).encode()
    made = hmac.new(secret, now + b"." + body, hashlib.sha256).hexdigest()
    request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}/stripe", body)
    request.add_header("Content-Type", "application/json")
    request.add_header("Stripe-Signature", f"t={now.decode()},v1={made}")
    try:
        with urllib.request.urlopen(request) as reply:
            return f"{reply.status}, {'again' if reply.headers['Idempotent-Replayed'] else 'first'}"
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.code}, {error.read().decode()}"


with Receiver.open("sqlite:///events.db") as receiver:
    policy = HttpPolicy.webhook("stripe")
    app = signed(IdempotencyMiddleware(handle, receiver=receiver, policy=policy))
    with make_server("127.0.0.1", 0, app, handler_class=Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        payment = {"type": "payment_intent.succeeded", "data": {"object": {"id": "pi_7"}}}
        print("forged:       ", deliver({"id": "evt_1", **payment}, secret=b"guessed"))
        print("delivered:    ", deliver({"id": "evt_1", "pending_webhooks": 2, **payment}))
        print("redelivered:  ", deliver({"id": "evt_1", "pending_webhooks": 1, **payment}))
        print("another event:", deliver({"id": "evt_2", "type": "customer.created", "data": {}}))
        server.shutdown()

assert paid == ["pi_7"]
print("handled:", paid)
