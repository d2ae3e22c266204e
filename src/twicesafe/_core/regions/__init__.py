"""Regions: which region serves a key, which keys are in doubt after a failover, and how records are copied. No I/O.

    epochs      the epoch of a set of keys, as the register keeps it; closing one and opening the next
    claiming    a claim in a region: is this region the home, and may the key be new?
    following   one pass that copies the records that changed, and what it found
    settling    what the old region's records say about keys that were in doubt
    pausing     a region in doubt is not copied: its own store says so
    failover    failing over, switching, settling

A flow yields `On(place, request)`; the places are stores.
"""
