"""The same flow of five steps on twicesafe, DBOS, Temporal and Restate: what it needs, costs and survives.

    python -m benchmarks.flows [--flows N] [--rounds N] [--publish]

Every contestant runs its worker in a process of its own (`workers`), with the settings that it ships, and
one fault: the worker is killed with SIGKILL in the middle of step 3, after its effect and before its record,
and a new worker is started. The effects are lines of a file. Packages of the peers are installed into
``.dev/flows``; one that cannot be had is left out, with the reason. They are no part of ``make test``.
"""
