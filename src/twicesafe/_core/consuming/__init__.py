"""Consuming: messages from a broker are handled, recorded, and only then acknowledged.

flow         the consumer flow; `state`: its commands and events, and what one run remembers
message      a message, and the key that its deliveries share
intake       which messages may start now; `starting`: under which claim
recovery     what follows a failed attempt; `verdicts`: what to tell the broker
settlement   acknowledge, give back, extend; `prefix`: what may be committed on Kafka
source       the interface of sources
outage       the pause while the broker or the store does not answer
"""
