"""The demo: a payment service with duplicate deliveries and killed workers, with twicesafe and without.

    plan      which payment is delivered when, and where workers die: all from one seed
    bank      the effect: a bank that takes every charge, and one that checks key and fence
    worker    one process of the service (``python -m twicesafe._demo.worker``)
    storm     the parent process: delivers, kills, restarts, redelivers
    saga      the second act: checkouts of several steps
    tally     counts lost, doubled and explained payments afterwards
    show      one run per mode, and whether the guarantees held
    report    the table

The kills are real (SIGKILL) and the banks are fsynced files outside twicesafe. The counts come from
the banks, not from the workers or their parent.
"""
