"""The field: real servers, real processes, a real network between them, all mistreated.

trial         what a trial is, the list of them, and how one is run
running       all of them, each engine in its own process; page: how they are published
adapters      every way to hold a transaction, killed at every phase (C3); adapter: one delivery
proxy         a TCP proxy that cuts, delays, throttles and swallows
drivers       a receiver, blocking or async, through any driver
consumers     consumers on real brokers: killed workers, restarts, poison (C14); consumer_worker: a
              worker; consumer_brokers: the brokers; consumer_plant: all of them
cuts          replies and requests that end after any number of bytes (C5); transactions: the inbox's
zombies       workers that stand still past their lease, and wake (C7); zombie: such a worker
clocks        clocks that jump (C8); clock_load: callers at work meanwhile; preload: what it
              takes
concurrent_processes
              workers killed by the hundred, a thousand callers on one key (C3, C9)
commits       workers killed in a transaction (C3), relays killed (C13)
lane_order    the order of an outbox's keys under refusals, operators and a backlog (C13)
mixed         receivers and inboxes on the same keys, while others sweep (C9)
agent_kills   agents on the real SDKs, killed by the hundred (C3)
durable_kills
              workers of durable runs, killed by the hundred (C3); durable_worker: such a worker
histories     concurrent clients, recorded (C10); linearity: the judge
killed_leaders
              a cluster that loses its leader, again and again (C6, C10)
process_deaths
              deaths before and after every statement (C4)
models        the shipped model at full size (C11)
refusals      a store that says no to one result, or never gets it (C5)
resources     what runs out: memory, room, the right to write (C15); soaker, filler: who uses it up
restarts      servers that die and come back, or are replaced (C6); slow_disk: with a write under way;
              silence: replaced while they are stopped
rolling       two versions on one database (C16); roller: a worker of either
"""

from . import (  # noqa: F401
    adapters,
    agent_kills,
    clocks,
    commits,
    concurrent_processes,
    consumers,
    cuts,
    durable_kills,
    histories,
    killed_leaders,
    lane_order,
    mixed,
    models,
    process_deaths,
    refusals,
    resources,
    restarts,
    rolling,
    silence,
    slow_disk,
    transactions,
    zombies,
)
from .trial import SERVERS, TRIALS, Trial, run_trial

__all__ = ["SERVERS", "TRIALS", "Trial", "run_trial"]
