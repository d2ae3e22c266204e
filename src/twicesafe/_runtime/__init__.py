"""Runtimes: perform the commands of flows, blocking, on an event loop or in a transaction; renew leases.

blocking, event_loop    the two runtimes of a receiver; `loop_connection`: an async store connects
transaction             the runtime of an inbox; `deferred_writes`: what must survive a rollback
flow_run                what a running flow holds, and must release however it ends; runs a handler under its claim
shared_state            what all flows of a runtime share
single_flight           concurrent deliveries of one key share one store request
lease_keeper            renews the leases of running handlers
replay_cache            recorded answers in memory
guarded_store           the circuit breaker around a store
checked_store           checks the secret of hidden keys with the first claim
batch_jobs              runs the handlers of a batch
step_transaction        runs a step of a durable run in a separate transaction
relay_runner            runs a relay
consumer_runner         runs a consumer; `handler_threads`: the threads of its handlers, and of a relay's publisher
adapting                blocking publishers and sources for an event loop, and async ones for threads
embedding               the model that compares texts by meaning
"""
