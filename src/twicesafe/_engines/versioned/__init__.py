"""What DynamoDB and MongoDB share: stores whose server compares versions and never times.

    record        a record with its version, and the write of an owner
    deciding      the requests: decide here, write if the version is still the same
    stores        `Store` and `AsyncStore`, as far as both engines have the same
    lease_watch   when a lease is over, without a clock in the server's conditions

A record has a fence, a state and a *revision*, which counts the writes that leave both as they are.
`_core.lifecycle` decides in the worker; the write that follows names the version that it is based
on. docs/decisions/0027-dynamodb.md says why this is safe.
"""
