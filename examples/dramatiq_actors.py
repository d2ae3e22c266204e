"""Dramatiq actors that run once per message: a repeat has the recorded result."""

import dramatiq
from dramatiq.brokers.stub import StubBroker
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend

from twicesafe import Receiver
from twicesafe.integrations.dramatiq import IdempotentActors

receiver = Receiver.open("memory://")  # in real life one that all workers share: redis://…
broker = StubBroker()  # in real life RedisBroker or RabbitmqBroker
broker.add_middleware(Results(backend=StubBackend(), store_results=True))
broker.add_middleware(IdempotentActors(receiver))
dramatiq.set_broker(broker)
charged: list[str] = []


@dramatiq.actor
def charge(order: str) -> str:
    charged.append(order)
    return f"charged {order}"


worker = dramatiq.Worker(broker, worker_timeout=10)
worker.start()
message = charge.message("o-1")
for delivery in (1, 2):  # the second one as after a lost acknowledgement
    broker.enqueue(message)
    print(f"delivery {delivery}:", message.get_result(block=True, timeout=20_000))
broker.join("default")
worker.stop()

print("charged:", charged)
assert charged == ["o-1"]
broker.close()
receiver.close()
