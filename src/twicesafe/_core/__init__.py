"""The pure core: all decisions, as values and generators. No I/O, no threads, no clocks.

A record and its life:

    protocol            the requests to a store, and the answers
    transitions         the states of a record, and what can happen to it
    lifecycle           what a store does with a record, by that table; `operator_lifecycle` for operators

One delivery:

    handler_profile     what a handler needs; with `handler_kind`, `handler_call` and `handler_scope`
    call                one delivery, as the flows see it; `resolved_policy` has its numbers
    delivery            the flow from the claim to the answer
    fast_path           the usual delivery, without a generator
    duplicates          the answer of a delivery that does not run the handler
    settling            the handler ended: record, then answer; `record_retry` records until the store has it
    batch               many deliveries at once
    inbox_flow          one delivery in the caller's transaction
    commands, driving   what a flow asks of the runtime, and the two drivers of all flows

Operating:

    operations, bulk_actions, searching, record_filter, archiving, health, circuit, observing

Larger subjects have rooms of their own: `http`, `durable`, `outbox`, `consuming`, `tool_calls`, `regions`,
`similarity`.
"""
