"""The pure core: all decisions, as values and generators. No I/O, no threads, no clocks.

One delivery:

    delivery            from the claim to the answer, as a flow, and as plain calls (the fast path)
    call                one delivery as data; `resolved_policy`: its policy in the units of the protocol
    duplicates          the answer or the error for a delivery that does not run the handler
    settling            after the handler: what to record, the back-off, and the answer
    claim_ends          a manual claim that ends without an answer
    outcome_recording   retries until the store has recorded it; `unkept_results`: without its result, and why
    batch               many deliveries at once
    inbox_flow          a delivery in the caller's transaction; `inbox_requests`: what it asks the store
    handler_profile     what is known of a handler; `handler_kind`, `handler_call`, `handler_scope`
    encrypting          payloads on their way to a store and back
    observing           what an observed call reports to observers

A record and its life:

    protocol            the requests to a store, and the answers
    transitions         the states of a record, and what can happen to it
    lifecycle           what a store does with a record, by that table; `operator_lifecycle` for operators

How flows run:

    commands            what a flow may ask of a runtime
    driving             runs every flow and every program, blocking or async

Operating:

    operations          the requests of operators and of maintenance
    searching           the conditions of a search; `record_filter`: what they mean
    operator_acts       one audit entry for an action on the whole store
    failure_groups      keys whose last attempt failed, by operation and error
    bulk_actions        an operator's action on many keys; `archiving`: answers that leave the store
    health              measured values against thresholds; `sample_schedule`: when to count a store
    breaker             the states of a circuit breaker
    secret_check        refuses a wrong secret for hidden keys

Larger subjects have separate packages: `http`, `durable`, `outbox` (with `sqs_wire`, a message in SQS),
`consuming`, `tool_calls`, `regions`, `similarity`.
"""
