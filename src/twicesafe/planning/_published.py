"""Sizes that the published benchmark measured: size and upkeep at 1 M keys, results of 200 bytes.

Those of DynamoDB and MongoDB are of the item or document alone, as `benchmarks.calls` counts them.
Made by docs/generate.py from benchmarks/results: run the benchmark, then the script.
"""

from __future__ import annotations

from typing import Final

__all__ = ["BYTES_PER_KEY", "KEY_BYTES", "RESULT_BYTES", "SWEEP_SECONDS"]

RESULT_BYTES: Final = 201
KEY_BYTES: Final = 14
BYTES_PER_KEY: Final = {
    "sqlite": 371.060736,
    "memory": 540.708864,
    "postgresql": 636.485632,
    "valkey": 390.525512,
    "mariadb": 583.008256,
    "dynamodb": 371.0,
    "mongodb": 453.0,
}
SWEEP_SECONDS: Final = {
    "sqlite": 3.660355785978027e-05,
    "postgresql": 8.365372719999868e-06,
    "mariadb": 2.7737659800041e-05,
}
"""Per removed key."""
