"""Values: keys, fingerprints, records, policies, codecs and the current claim. No I/O, and no thread is started.

keys            the identity of one operation, and owner tokens; `hidden_keys`, `signed_key`
fingerprint     is this repeat the same request?; `canonical`: one byte string per value
policy          the settings of a receiver, and its back-off; `breaker`: those of a circuit breaker
records         what a store keeps about a key; `steps`: about the parts of a durable run; `own_records`: about itself
outcomes        what a caller gets
context         the claim that the current code runs under; `branches`: its thread or task
codecs/         results as bytes; `object_fields`: objects of a user's class as named fields
cipher          the interface of encryption; `key_source`: where a key file is read from
clocks          the worker's clock, and that of embedded stores
settings        one wording for wrong settings; `quantities`: rates, shares and sizes
drivers         packages that an extra installs
closed          takes the place of a store that was closed
lazy_annotations   what a function or class declares, on every Python
wakeup          wakes one waiting thread, from anywhere
"""
