"""The pure core: decisions and exchanges as values and generators. No I/O, threads or clocks here."""
