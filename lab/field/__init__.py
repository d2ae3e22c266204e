"""The field: real servers, real processes, a real network between them, all mistreated.

trial       what a trial is, the list of them, and how one is run
proxy       a TCP proxy that cuts, delays, throttles and swallows
doors       a receiver in any colour, through any driver
cuts        replies and requests that end after any number of bytes
"""

from . import clocks, crowds, cuts, histories, models, points, resources, restarts, zombies  # noqa: F401
from .trial import SERVERS, TRIALS, Trial, run_trial

__all__ = ["SERVERS", "TRIALS", "Trial", "run_trial"]
