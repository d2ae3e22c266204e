"""What several edges share: the performers of the core's flows, and small parts of servers and pages.

http_guard      performs the flow of a keyed request, for ASGI, WSGI, Django and the proxy; in the usual
                case on an event loop without a generator
wsgi_input      whether a WSGI request without a length has a body, for WSGI and Django
tool_guard      performs the flow of a tool call, for the adapters of agent frameworks
listener        the address and the socket of a server, for the proxy and the dashboard
readable        text for people, for the command line and the dashboard
"""
