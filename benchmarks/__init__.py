"""How fast: ours against hand-written code and against the neighbours, in one run.

``make bench`` runs all of it. Read `cases` for what is measured, `floors` for what it is compared
with, `measure` for how.
"""
