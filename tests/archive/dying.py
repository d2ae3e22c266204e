"""Archives three answers, and kills itself with SIGKILL at one point: ``python dying.py URL PLACE POINT``."""

import os
import signal
import sys
from typing import Any

from twicesafe import Receiver
from twicesafe._core.archiving import Archiving
from twicesafe.archive import _directory

url, place, point = sys.argv[1:]


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after(function: Any, calls: int = 1) -> Any:
    left = [calls]

    def run(*args: Any, **kwargs: Any) -> Any:
        answer = function(*args, **kwargs)
        left[0] -= 1
        if left[0] == 0:
            die()
        return answer

    return run


match point:
    case "before the file":
        _directory.Directory.write = die  # type: ignore[method-assign]
    case "half a file":
        write = os.fsync
        os.fsync = lambda handle: (os.ftruncate(handle, 10), die())  # type: ignore[assignment]
        _directory._sync = lambda folder: None
    case "before its name":
        os.rename = die  # type: ignore[assignment]
    case "after its name":
        os.rename = after(os.rename)  # type: ignore[assignment]
    case "before erasing":
        Archiving.erase = die  # type: ignore[method-assign, assignment]
    case "while erasing":
        erase = Archiving.erase

        def one(self: Any, rows: Any) -> Any:
            yield from erase(self, rows[:1])
            die()

        Archiving.erase = one  # type: ignore[method-assign]

with Receiver.open(url) as receiver:
    receiver.archive(place, older_than=0)
