"""The outbox: which of its messages a relay publishes next, and what a publisher's answers cause.

requests        the requests to a store, and the answers
publisher       the interface of publishers
relay_lease     one relay at a time, by a lease
relay_publish   the loop that publishes, in the order of each key
relay_answers   what follows when a message was published or refused, or the broker did not answer
"""
