"""The pure core: all decisions, as values and generators. No I/O, no threads, no clocks.

One delivery
    delivery             from the claim to the answer, as a flow; `fast_path`: the same as plain calls
    call                 one delivery as data; `resolved_policy`: its policy in the units of the protocol
    duplicates           the answer or the error for a delivery that does not run the handler
    settling             the handler has ended: what to record, after which back-off, and the answer
    outcome_recording    retries until the store has recorded it
    batch                many deliveries at once
    inbox_flow           a delivery in the caller's transaction
    handler_profile      what is known of a handler; `handler_kind`, `handler_call`, `handler_scope`
    encrypting           payloads on their way to a store and back

Records
    protocol             the requests to a store, and the answers
    transitions          the table of states; `lifecycle`, `operator_lifecycle`: the decisions based on it
    operations           the requests of operators and of maintenance; `bulk_actions`, `archiving`
    searching            the conditions of a search; `record_filter`: what they mean

How flows run
    commands             what a flow may ask of a runtime
    driving              runs every flow and every program

Durable runs
    durable_run          one run, from its claim to its end
    steps                single steps; `step_records`, `transaction_step`
    run_state            what one attempt knows; `run_requests`, `run_lifecycle`: the store's part
    compensation         undoes a failed run
    run_suspension       gives a run back until it is due
    run_operations       the completer's and the operators' requests

The outbox
    outbox_requests      the requests of a relay to a store
    relay_lease          which part of the outbox this relay publishes
    relay_publish        which message is published next; `relay_answers`: what follows from an answer
    publisher            the interface of publishers; `sqs_wire`: a message in SQS

    consuming/           messages from a broker             http/        keyed requests
    tool_calls/          tool calls of agents               regions/     copies and failover
    near_duplicates/     requests that mean the same        health       measured values against thresholds
    breaker              the states of a circuit breaker    observing    what an observed call reports
    secret_check         the secret of hidden keys          sample_schedule   when to count a store
"""
