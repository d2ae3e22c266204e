"""How fast: ours against hand-written code, against the peers, and against another version of ours.

``make bench`` runs the first two, ``make bench ARGS="--against COMMIT"`` the last.

    what is measured     cases: embedded, networked (by drivers), http_layer, web, inbox, growth; apart from
                         them processes, outbox, imports, size, size_servers, calls
    compared with        floors, floors_*, peers
    how                  workload (keys, callers), measure (rounds), spread (medians and tails)
    two versions         against, verdicts; side is the process of one version
    what it needs        engines (servers), delay (a slow network)
    what comes out       running, rows, report, publishing; remarks.toml has the words of the page
    by hand              generations
"""
