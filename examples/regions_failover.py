"""A failover between two regions, and the way back: what is known, what is held, what is learned.

    python examples/regions_failover.py

The regions are two SQLite files here; any two stores do, also of different engines.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from twicesafe import HeldError, Key, NotHomeError
from twicesafe.regions import Regions

charged: list[str] = []


def charge(order: str) -> str:
    charged.append(order)
    return f"charged {order}"


def main(folder: Path) -> None:
    stores = {name: f"sqlite:///{folder / name}.db" for name in ("eu", "us")}
    register = f"sqlite:///{folder}/register.db"
    with Regions.open(stores, register=register, home="eu", lease=0.2, skew=0.1) as regions:
        regions.create()
        eu, us = regions.receiver("eu"), regions.receiver("us")
        one, two = Key.random(), Key.random()

        eu.process(one, charge, "order 1")
        regions.follower("eu", "us").once()
        eu.process(two, charge, "order 2")  # not copied
        try:
            us.process(one, charge, "order 1")
        except NotHomeError as error:
            print("us:", error)
        print("eu charged both orders; only the first was copied to us")

        epoch = regions.fail_over("eu", to="us")
        print(f"eu is lost: us serves its keys, epoch {epoch.number}")
        print("  order 1:", us.process(one, charge, "order 1"))
        try:
            us.process(two, charge, "order 2")
        except HeldError as error:
            print("  order 2:", error)
        print(f"  in doubt: {len(regions.in_doubt('us'))}")

        report = regions.settle("eu")
        print(f"eu's store is back: {report.learned} answer learned")
        print("  order 2:", us.process(two, charge, "order 2"))

        epoch = regions.switch("eu", to="eu")
        print(f"home again, epoch {epoch.number}")
        print("  order 2:", eu.process(two, charge, "order 2"))
    assert charged == ["order 1", "order 2"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
