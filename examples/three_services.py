"""Checkout calls order, order calls payment. Order fails after the card was charged, the customer's
client retries, and every service is called twice. Each acts once: every service derives the keys of
its calls from the key of its request, so the retry sends the same keys."""

import subprocess
import sys
from pathlib import Path
from wsgiref.simple_server import WSGIRequestHandler, make_server

import httpx

from twicesafe import Receiver
from twicesafe.client import RetryPolicy, sent_of
from twicesafe.client.httpx import RetryTransport
from twicesafe.propagation import inject
from twicesafe.wsgi import IdempotencyMiddleware

# Who retries? One of them, the edge: three attempts at each of three hops would be 27 requests.
INSIDE = RetryPolicy(attempts=1)


class Service:
    """A service with keys of its own. What it did is a line in its journal."""

    def __init__(self, name: str, downstream: str) -> None:
        self.name = name
        self.client = httpx.Client(base_url=downstream, transport=RetryTransport(policy=INSIDE))

    def __call__(self, environ, start_response):
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        status, body = getattr(self, self.name)()
        start_response(f"{status} Said", [("Content-Type", "text/plain")])
        return [body.encode()]

    def did(self, what: str) -> int:
        note(f"{self.name}.journal", what)
        return count(f"{self.name}.journal")

    def checkout(self) -> tuple[int, str]:
        made = self.client.post("/orders", content="cart 7")  # named for us: "POST /orders #1"
        if made.status_code != 201:
            return 503, "come back"  # nothing is recorded: a retry runs again
        return 201, f"receipt {self.did('receipt')} for {made.text}"

    def order(self) -> tuple[int, str]:
        paid = self.client.post("/", content="500 cents", headers=inject({}, step="charge-card"))
        if not Path("database").exists():
            Path("database").touch()
            return 503, "the database is away"  # and the card is charged
        return 201, f"order {self.did('order')}, {paid.text}"

    def payment(self) -> tuple[int, str]:
        return 201, f"charge {self.did('charge')}"


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


def counted(name: str, app):
    def hit(environ, start_response):
        note(f"{name}.hits", "hit")
        return app(environ, start_response)

    return hit


def note(file: str, line: str) -> None:
    with Path(file).open("a") as journal:
        journal.write(line + "\n")


def count(file: str) -> int:
    return len(Path(file).read_text().splitlines())


def serve(name: str, downstream: str) -> None:
    with Receiver.open(f"sqlite:///{name}.db") as receiver:
        app = IdempotencyMiddleware(Service(name, downstream), receiver=receiver)
        with make_server("127.0.0.1", 0, counted(name, app), handler_class=Quiet) as server:
            print(f"http://127.0.0.1:{server.server_port}", flush=True)
            server.serve_forever()


def start(name: str, downstream: str = "") -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, __file__, name, downstream], stdout=subprocess.PIPE, text=True
    )
    return process, process.stdout.readline().strip()


def main() -> None:
    payment, payment_url = start("payment")
    order, order_url = start("order", payment_url)
    checkout, checkout_url = start("checkout", order_url)
    try:
        with httpx.Client(transport=RetryTransport()) as customer:
            answer = customer.post(f"{checkout_url}/checkout", content="cart 7")
        print(f"the customer got: {answer.text}, after {sent_of(answer).attempts} attempts")
    finally:
        for process in (checkout, order, payment):
            process.terminate()
            process.communicate()
    for name in ("checkout", "order", "payment"):
        hits, acts = count(f"{name}.hits"), count(f"{name}.journal")
        print(f"{name:8}  hit {hits} times, acted {acts} time")
        assert (hits, acts) == (2, 1)


if __name__ == "__main__":
    serve(*sys.argv[1:]) if len(sys.argv) > 1 else main()
