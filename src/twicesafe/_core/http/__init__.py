"""The rules of the Idempotency-Key layer, as functions of data: no I/O and no server.

    message      a request and a response, as data
    key_field    parses the key from its header field
    json_reading reads JSON and keeps repeated members, for sources
    sources      other places where a key may be found
    routes       patterns of methods and paths
    policy       the settings, checked when a policy is made
    parameters   queries and forms in a canonical order
    json_form    JSON bodies in a canonical form
    fingerprint  tells whether a repeat is the same request
    stored       what is kept of a response, its encoding, and its replay
    recording    records a response while it is sent, and says how its key ends
    problems     the problem documents of the layer
    rules        all rules, compiled for one policy
    flow         one keyed request from start to end, as commands for the edges

    forwarding   which header fields a proxy passes on
    framing      where messages on a connection begin and end
    wire         refuses messages that two parsers could read differently

The edges (ASGI, WSGI, Django) perform the flow and decide nothing. These modules import only values.
"""
