"""How fast is it on your server? ``twicesafe bench --store URL``.

    place       a table, prefix or file of the benchmark's own, removed when it ends
    scenarios   what is offered: first deliveries, duplicates, batches, a herd on one key
    timing      callers, threads or tasks, that work until the time is over; what they saw
    page        the report as one HTML file that needs nothing else

The user's records are never touched: a store is only ever opened at a place that was made for this
run. The handler does nothing, so the figures are the cost of the receiver and its store.
"""
