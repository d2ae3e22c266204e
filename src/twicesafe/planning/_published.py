"""Sizes that the published benchmark measured: size and upkeep at 200,000 keys, results of 200 bytes.

Those of DynamoDB and MongoDB are of the item or document alone, as `benchmarks.calls` counts them.
Made by docs/generate.py from benchmarks/results: run the benchmark, then the script.
"""

from __future__ import annotations

from typing import Final

__all__ = ["BYTES_PER_KEY", "KEY_BYTES", "RESULT_BYTES", "SWEEP_SECONDS"]

RESULT_BYTES: Final = 201
KEY_BYTES: Final = 14
BYTES_PER_KEY: Final = {
    "sqlite": 332.86144,
    "memory": 554.65984,
    "postgresql": 522.93632,
    "valkey": 385.60276,
    "mariadb": 629.1456,
    "etcd": 459.5712,
    "dynamodb": 371.0,
    "mongodb": 453.0,
}
SWEEP_SECONDS: Final = {
    "sqlite": 1.3875134299996717e-05,
    "postgresql": 2.594322899949475e-06,
    "mariadb": 1.5314028000011604e-05,
}
"""Per removed key."""
