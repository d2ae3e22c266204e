"""Values: keys, fingerprints, records, policies, codecs and the current claim. No I/O, no threads."""
