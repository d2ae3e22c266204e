"""One worker per contestant: ``python WORKER.py FOLDER PLACE COUNT``.

It runs COUNT flows one after the other, prints their seconds as a JSON list, and exits. COUNT 0: the flow
``dying``, which kills the worker. COUNT -1: finish what a dead worker left.
"""
