"""Flask: the middleware around `wsgi_app`, so that `app` is still a Flask application.

flask --app flask_shop run        or gunicorn flask_shop:app
"""

from flask import Flask, request

from twicesafe import Receiver, current_key
from twicesafe.http import HttpPolicy
from twicesafe.wsgi import IdempotencyMiddleware

receiver = Receiver.open("sqlite:///keys.db")
charges: list[int] = []

app = Flask(__name__)
app.wsgi_app = IdempotencyMiddleware(  # type: ignore[method-assign]
    app.wsgi_app, receiver=receiver, policy=HttpPolicy(scope=("Authorization", "cookie:session"))
)


@app.post("/charges")
def charge():
    cents = request.get_json()["cents"]
    if cents > 1000:
        return {"error": "the card was declined"}, 402
    charges.append(cents)
    key = current_key()
    return {"charge": len(charges), "key": None if key is None else key.value}, 201


def main() -> None:
    shop = app.test_client()

    def post(cents: int, key: str) -> str:
        reply = shop.post("/charges", json={"cents": cents}, headers={"Idempotency-Key": key})
        again = ", again" if "Idempotent-Replayed" in reply.headers else ""
        return f"{reply.status_code}{again}: {' '.join(reply.text.split())[:60]}"

    print("the request:     ", post(500, "order-7"))
    print("the same again:  ", post(500, "order-7"))
    print("another one:     ", post(900, "order-7"))
    print("declined:        ", post(5000, "order-8"))
    print("declined again:  ", post(5000, "order-8"))
    receiver.close()
    assert charges == [500]


if __name__ == "__main__":
    main()
