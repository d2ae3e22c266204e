"""The field: real servers, real processes, a real network between them, all mistreated.

trial       what a trial is, the list of them, and how one is run
proxy       a TCP proxy that cuts, delays, throttles and swallows
doors       a receiver in any colour, through any driver
cuts        replies and requests that end after any number of bytes
"""

from . import (  # noqa: F401
    clocks,
    crowds,
    cuts,
    histories,
    models,
    points,
    resources,
    restarts,
    rolling,
    transactions,
    zombies,
)
from .trial import SERVERS, TRIALS, Trial, run_trial

__all__ = ["SERVERS", "TRIALS", "Trial", "run_trial"]
