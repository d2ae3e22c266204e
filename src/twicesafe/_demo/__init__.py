"""The demo: a payment service in a storm of repeats and kills, with twicesafe and without it.

    plan      which payment is delivered when, and where workers die: all from one seed
    bank      the effect: a bank that takes every charge, and one that looks at key and fence
    worker    one process of the service (``python -m twicesafe._demo.worker``)
    storm     the parent: delivers, kills, restarts, delivers again
    tally     what the banks and the records say afterwards: lost, doubled, explained
    show      the storm once per mode, and whether the promises held
    report    the table

The kills are real (SIGKILL), the banks are fsynced files outside twicesafe, and the counting
trusts neither the workers nor the storm: it reads the banks.
"""
