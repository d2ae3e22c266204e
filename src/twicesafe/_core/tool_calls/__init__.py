"""Tool calls of agents: a call's key and fingerprint, the flow from claim to answer, and the answers."""
