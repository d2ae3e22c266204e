"""Durable runs: functions whose steps are recorded one by one, so that a run continues after a crash.

run                 the flow of one run: claim, run the function, settle
steps               the flow of a step that runs a function
waits               the flows of sleeps and waits
step_records        how a step is recorded
transaction_step    a step that commits with its effect
run_state           what was recorded, and what the steps of this attempt asked for
run_suspension      a run is given back until it is due
compensation        the recorded undos, in reverse
run_operations      the completer and the operators

run_requests        the requests to a store, and the answers
run_lifecycle       what a store does with them
"""
