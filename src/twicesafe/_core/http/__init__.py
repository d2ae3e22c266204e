"""HTTP, decided without a server: every rule of the Idempotency-Key layer as a function of data.

    message      a request and a response, as data
    key_field    the key: parsed from its field, or refused
    json_reading JSON with its repetitions, for sources
    sources      other places where a key may be found
    routes       which method and path a setting is about
    policy       the settings, checked when they are made
    content      how a body is labelled
    parameters   queries and forms in one order
    json_form    JSON bodies in one form, never two values in one
    fingerprint  is this repeat the same request?
    stored       what is kept of a response, its bytes, and what a replay looks like
    recording    a response while it passes by, and how its key ends
    problems     the layer's own answers
    rules        all of it, compiled for one policy: what the edges call

The edges (ASGI, WSGI) move bytes; they decide nothing. Nothing here imports more than values.
"""
