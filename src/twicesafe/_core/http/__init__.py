"""The rules of the Idempotency-Key layer, as functions of data: no I/O and no server.

    policy           the settings, checked when a policy is made
    rules            all rules, compiled for one policy
    flow             one keyed request from start to end, as commands for the edges

    message          a request and a response, as data
    routes           patterns of methods and paths
    key_field        parses the key from its header field, and says who it belongs to
    key_sources      other places where a key may be found
    json_reading     reads JSON and keeps repeated members, for `key_sources`
    fingerprint      tells whether a repeat is the same request
    parameters       queries and forms in a canonical order, for `fingerprint`
    stored_response  records a response while it is sent, and says how its key ends; its encoding and replay
    problems         the error responses: problem documents

    forwarding       which header fields a proxy passes on
    framing          where messages on a connection begin and end
    wire             refuses messages that two parsers could read differently

The edges (ASGI, WSGI, Django) perform the flow and decide nothing. These modules import only values.
"""
