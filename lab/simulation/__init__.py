"""Deterministic simulation: the real core, on a virtual network, under virtual time.

    plan        a seed becomes data: who delivers what when, and everything that goes wrong
    world       virtual time and the clocks in it; one run of one plan
    network     requests that get lost, late, doubled or overtaken on their way to the store
    process     a simulated process: its flights, its lease keeper, its trips
    trip        performs what a flow asks for, as the two runtimes do
    launching   the handlers of a batch
    running     handlers that return, fail, hang, are cancelled or kill their process
    monitor     what may never happen, seen from the store
    ledger      what may never happen, seen from the handlers and their callers
    campaign    many seeds, on all cores, counted
    shrinking   a failing plan made small enough to read

Flows, lifecycle, memory store, flights and the keeper's rule are the shipped code, unchanged.
"""
