"""Metrics of a receiver, as Prometheus reads them: deliveries, duplicates and their age, seconds.

python examples/metrics.py             count a few payments, print the page, end
python examples/metrics.py 9100        keep serving http://127.0.0.1:9100/metrics
"""

import sys
import threading
import urllib.request

from prometheus_client import start_http_server

from twicesafe import Receiver
from twicesafe.observers import LogObserver, PrometheusObserver


def charge(cents: int) -> str:
    return f"charged {cents}"


def main(port: int = 0) -> None:
    server, thread = start_http_server(port, addr="127.0.0.1")
    observers = [PrometheusObserver(), LogObserver()]
    with Receiver.open("memory://", observers=observers) as receiver:
        for key in ("tx-1", "tx-2", "tx-1", "tx-1"):  # the last two are duplicates
            receiver.process(key, charge, 500)
        receiver.sample()  # the gauges; `receiver.maintain()` does it every few minutes
        if port:
            threading.Event().wait()
        page = urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics").read()
    for line in page.decode().splitlines():
        if line.startswith(("twicesafe_deliveries_total", "twicesafe_records{state")):
            print(line)
    server.shutdown()
    server.server_close()
    thread.join()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
