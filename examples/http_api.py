"""An HTTP API behind the middleware: a client that retries is charged once."""

import threading
import urllib.error
import urllib.request
from wsgiref.simple_server import WSGIRequestHandler, make_server

from twicesafe import Receiver
from twicesafe.wsgi import IdempotencyMiddleware

charges: list[bytes] = []


def shop(environ, start_response):
    charges.append(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
    if b"broken" in charges[-1]:
        raise ConnectionError("no answer from the bank")
    start_response("201 Created", [("Content-Type", "text/plain"), ("Location", "/charges/1")])
    return [b"charge %d" % len(charges)]


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


def post(body: bytes, key: str) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{server.server_port}/charges", body)
    request.add_header("Idempotency-Key", key)
    try:
        with urllib.request.urlopen(request) as reply:
            again = "again" if reply.headers["Idempotent-Replayed"] else "first"
            return f"{reply.status} {again}: {reply.read().decode()}"
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.code} {error.headers['Content-Type']}"


with Receiver.open("sqlite:///keys.db") as receiver:
    app = IdempotencyMiddleware(shop, receiver=receiver)
    with make_server("127.0.0.1", 0, app, handler_class=Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print("the request:         ", post(b"500 cents", "order-7"))
        print("the same again:      ", post(b"500 cents", "order-7"))
        print("another one:         ", post(b"900 cents", "order-7"))
        print("a crash in mid-work: ", post(b"broken", "order-8"))
        print("its retry:           ", post(b"broken", "order-8"))
        server.shutdown()

assert charges == [b"500 cents", b"broken"]
print(len(charges), "requests had an effect, or may have had")
