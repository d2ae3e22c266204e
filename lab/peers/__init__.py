"""The same scenarios, run against us and against other Python libraries.

Each library has a small adapter with the same verb, `guard`: this function, protected in this way.
The scenarios know no library: they order calls from worker processes, stop and kill them, cut their
connections, and write down in one phrase what was seen. So a cell of the table is never an opinion.

`peer.py` says what an adapter is, `worker.py` is the process that calls, `column.py` holds a library's
workers on one store, `scenarios.py` is what happens to them, `page.py` makes the page.
"""
