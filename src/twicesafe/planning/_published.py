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
    "memory": 554.72128,
    "postgresql": 522.93632,
    "valkey": 370.56476,
    "mariadb": 629.1456,
    "etcd": 460.5952,
    "dynamodb": 371.0,
    "mongodb": 453.0,
}
SWEEP_SECONDS: Final = {
    "sqlite": 1.8405251799958933e-05,
    "postgresql": 6.420507199982239e-06,
    "mariadb": 2.5389367200114066e-05,
}
"""Per removed key."""
