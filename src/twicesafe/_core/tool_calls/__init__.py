"""Tool calls of agents: a call's key and fingerprint, the flow from claim to answer, and the answers.

flow        from the claim to the answer
rule        what identifies the calls of a tool, and what an unknown outcome means
identity    the key and the fingerprint of a call
statements  which errors say that nothing was done
answers     what the model reads
json_rpc    MCP on the wire, for the proxy
"""
