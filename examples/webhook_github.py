"""A receiver of GitHub's webhooks. The key is `X-GitHub-Delivery`, which a redelivery repeats.

There is one id per event. If an organisation's hook and a repository's hook both point here, they send
the same id, and both must be handled: `scope=("X-GitHub-Hook-ID",)` keeps them apart."""

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

SECRET = b"It's a Secret to Everybody"
builds: list[str] = []


def handle(environ, start_response):
    push = json.load(environ["wsgi.input"])
    builds.append(f"hook {environ['HTTP_X_GITHUB_HOOK_ID']}: {push['after']}")
    start_response("202 Accepted", [("Content-Type", "text/plain")])
    return [b"building"]


def signature(body: bytes, secret: bytes = SECRET) -> str:
    return "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()


def signed(app):
    def check(environ, start_response):
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        given = environ.get("HTTP_X_HUB_SIGNATURE_256", "").encode("latin-1")
        if not hmac.compare_digest(signature(body).encode(), given):  # as text, it raises on "é"
            start_response("401 Unauthorized", [("Content-Type", "text/plain")])
            return [b"not from GitHub"]
        environ["wsgi.input"] = io.BytesIO(body)
        return app(environ, start_response)

    return check


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


def deliver(guid: str, commit: str, hook: str = "1", secret: bytes = SECRET) -> str:
    body = json.dumps({"after": commit}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}/github", body)
    request.add_header("Content-Type", "application/json")
    request.add_header("X-GitHub-Event", "push")
    request.add_header("X-GitHub-Delivery", guid)
    request.add_header("X-GitHub-Hook-ID", hook)
    request.add_header("X-Hub-Signature-256", signature(body, secret))
    try:
        with urllib.request.urlopen(request) as reply:
            return f"{reply.status}, {'again' if reply.headers['Idempotent-Replayed'] else 'first'}"
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.code}, {error.read().decode()}"


with Receiver.open("sqlite:///events.db") as receiver:
    policy = HttpPolicy.webhook("github", scope=("X-GitHub-Hook-ID",))
    app = signed(IdempotencyMiddleware(handle, receiver=receiver, policy=policy))
    with make_server("127.0.0.1", 0, app, handler_class=Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        guid = "72d3162e-cc78-11e3-81ab-4c9367dc0958"
        print("forged:      ", deliver(guid, "6dcb09b", secret=b"guessed"))
        print("delivered:   ", deliver(guid, "6dcb09b"))
        print("redelivered: ", deliver(guid, "6dcb09b"))
        print("another hook:", deliver(guid, "6dcb09b", hook="2"))
        server.shutdown()

assert builds == ["hook 1: 6dcb09b", "hook 2: 6dcb09b"]
print("handled:", builds)
