"""The pure core: all decisions, as values and generators. No I/O, no threads, no clocks."""
