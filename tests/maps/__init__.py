"""The maps: which test holds what was promised to survive (`faults`) and to refuse (`attacks`).

A promise without a test is a wish, and a test that readers cannot find proves nothing to them. So each
row names its tests, a test fails when one of them is gone, and two pages of the documentation show
it all with the last recorded result:

    python -m tests.maps            write docs/reference/faults.md and attacks.md
    python -m tests.maps run        run the named tests first, and record how they ended
    pytest --record-maps            your own run, recorded the same way
"""
