"""The benchmark: how fast twicesafe is on your own server, by ``twicesafe bench --store URL``.

    place       a table, prefix or file of the benchmark's own, removed when it ends
    scenarios   the load: first deliveries, duplicates, batches, a herd on one key
    timing      runs threads or tasks for a given time and measures each call
    page        the report as one self-contained HTML file

The user's records are never touched: each run creates its own table, prefix or file. The handler
does nothing, so the figures are the cost of the receiver and its store.
"""
