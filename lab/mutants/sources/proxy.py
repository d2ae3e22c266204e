"""Source mutants of the proxy: guards that let pass, fields that are believed, requests sent twice."""

from __future__ import annotations

from .registry import break_source

WIRE = "tests/http/test_wire.py"
SOCKETS = "tests/http/test_proxy_wire.py"
PROXY = "tests/http/test_proxy.py"
LOGS = "tests/http/test_proxy_logs.py"
SETTINGS = "tests/http/test_proxy_settings.py"

# --- the guards ----------------------------------------------------------------------------------

break_source(
    "octets pass before they are judged",
    bug="the server's parser gets what the client sent, not what the guard has judged",
    file="_proxy/server.py",
    old="judged = guard.feed(data)",
    new="judged = (guard.feed(data), data)[1]",
    tests=[f"{SOCKETS}::test_what_follows_the_last_request_of_a_connection_is_not_read"],
)
break_source(
    "LF alone ends a line",
    bug="only CR alone is refused in a line of a request",
    file="_core/http/framing.py",
    old=r'_BARE: Final = rb"(?<!\r)\n|\r(?=[^\n])"',
    new=r'_BARE: Final = rb"\r(?=[^\n])"',
    tests=[f"{WIRE}::test_a_bare_lf_is_refused_when_it_comes_and_not_at_the_end_of_the_head"],
)
break_source(
    "LF alone ends a line of a response",
    bug="only CR alone is refused in a line of a response",
    file="_core/http/wire.py",
    old=r'rb"[\x00\x0b\x0c]|(?<!\r)\n|\r(?=[^\n])"',
    new=r'rb"[\x00\x0b\x0c]|\r(?=[^\n])"',
    tests=[f"{WIRE}::test_what_no_upstream_may_say"],
)
break_source(
    "a line that came in pieces is searched from its last piece",
    bug="a LF at the beginning of a piece is not compared with the end of the piece before",
    file="_core/http/framing.py",
    old="start = len(held), max(0, self._searched - len(end) + 1)",
    new="start = len(held), self._searched",
    tests=[f"{WIRE}::test_what_can_be_read_in_one_way_passes"],
)
break_source(
    "a length may stand beside a coding",
    bug="Content-Length and Transfer-Encoding together are read by the coding",
    file="_core/http/wire.py",
    old="if length is not None or is_old or coding.lower()",
    new="if is_old or coding.lower()",
    tests=[f"{WIRE}::test_what_could_be_read_in_two_ways_is_refused"],
)
break_source(
    "the second Host counts",
    bug="a field that may stand once is taken from its last line",
    file="_core/http/wire.py",
    old="                if name in found:\n                    raise",
    new="                if name in found and name != b'host':\n                    raise",
    tests=[f"{WIRE}::test_what_could_be_read_in_two_ways_is_refused"],
)
break_source(
    "absolute targets pass",
    bug="a request for http://other/ is taken for one of this host",
    file="_core/http/wire.py",
    old=r"(/[\x21\x22\x24-\x7e]*+|\*)",
    new=r"([\x21-\x7e]++)",
    tests=[f"{WIRE}::test_what_could_be_read_in_two_ways_is_refused"],
)
break_source(
    "no request is the last one",
    bug="what follows Connection: close is read as another request",
    file="_core/http/wire.py",
    old="self._part = self._over if self._is_last else self._head",
    new="self._part = self._head",
    tests=[f"{WIRE}::test_what_can_be_read_in_one_way_passes"],
)
break_source(
    "trailers pass",
    bug="the parser is given trailers, and some take them for fields of the next request",
    file="_core/http/framing.py",
    old='        return b"", at\n\n    def _over',
    new="        return line, at\n\n    def _over",
    tests=[f"{WIRE}::test_what_can_be_read_in_one_way_passes"],
)
break_source(
    "tiny chunks are not counted",
    bug="a body may consist of any number of chunks of one octet",
    file="_core/http/framing.py",
    old="self._tiny += self._left < _TINY",
    new="self._tiny += self._left < 0",
    tests=[f"{WIRE}::test_what_could_be_read_in_two_ways_is_refused"],
)
break_source(
    "two lengths of a response",
    bug="of two different lengths of a response one is taken",
    file="_core/http/wire.py",
    old="if len(lengths) > 1 or not all",
    new="if not all",
    tests=[f"{WIRE}::test_what_no_upstream_may_say"],
)
break_source(
    "unasked octets are forgotten",
    bug="a connection is used again although octets came that answered nothing",
    file="_core/http/wire.py",
    old='        self.is_clean = False\n        return b"", len(data)',
    new='        return b"", len(data)',
    tests=[f"{PROXY}::test_octets_after_a_response_belong_to_no_response",
           f"{SOCKETS}::test_an_upstream_that_speaks_first_is_not_asked"],
)  # fmt: skip
break_source(
    "a length beside a coding keeps its connection",
    bug="a connection is used again after a response that said two things about its length",
    file="_core/http/wire.py",
    old='if codings and (lengths or line[1] == b"0"):',
    new='if codings and line[1] == b"0":',
    tests=[f"{SOCKETS}::test_a_length_beside_a_coding_ends_the_connection"],
)
break_source(
    "another expectation passes",
    bug="an Expect that is not 100-continue is passed over",
    file="_core/http/wire.py",
    old='.lower() != b"100-continue":',
    new='.lower() == b"":',
    tests=[f"{WIRE}::test_what_could_be_read_in_two_ways_is_refused"],
)
break_source(
    "a client that was refused instead of 100 is read on",
    bug="its next request is read as the body that it does not send",
    file="_proxy/front.py",
    old="if self.is_awaited:",
    new="if False:",
    tests=[f"{SOCKETS}::test_a_client_that_was_refused_instead_of_100_is_not_read_on"],
)
break_source(
    "a second answer",
    bug="a body that breaks after its answer is answered with 400",
    file="_proxy/server.py",
    old="if self.conn.their_state in (h11.SEND_BODY, h11.ERROR) and cycle is not None:",
    new="if self.conn.their_state is h11.ERROR and cycle is not None:",
    tests=[f"{SOCKETS}::test_an_answer_that_has_begun_is_not_followed_by_a_refusal"],
)

# --- fields --------------------------------------------------------------------------------------

break_source(
    "strangers say who they are",
    bug="X-Forwarded-* is believed from every peer",
    file="_core/http/forwarding.py",
    old="if not believed and (_is_by_proxies(name) or name in self._tenants):",
    new="if not believed and name in self._tenants:",
    tests=[f"{PROXY}::test_what_only_a_proxy_can_say_is_dropped_unless_its_peer_is_trusted"],
)
break_source(
    "strangers say whose keys they use",
    bug="a field that scope names is believed from every peer",
    file="_core/http/forwarding.py",
    old="if not believed and (_is_by_proxies(name) or name in self._tenants):",
    new="if not believed and _is_by_proxies(name):",
    tests=[f"{PROXY}::test_a_tenant_header_is_accepted_from_trusted_peers_only"],
)
break_source(
    "X_Forwarded_For passes",
    bug="a name passes that CGI takes for one of ours",
    file="_core/http/forwarding.py",
    old="return known != name and (known in self._ours or _is_by_proxies(known))",
    new="return False",
    tests=[f"{PROXY}::test_what_only_a_proxy_can_say_is_dropped_unless_its_peer_is_trusted"],
)
break_source(
    "some X-Forwarded fields pass",
    bug="only X-Forwarded-For is dropped",
    file="_core/http/forwarding.py",
    old='b"x-forwarded", b"x-original-"',
    new='b"x-forwarded-for", b"x-original-"',
    tests=[f"{PROXY}::test_what_only_a_proxy_can_say_is_dropped_unless_its_peer_is_trusted"],
)
break_source(
    "Connection takes the key away",
    bug="a client names the key's field in Connection, and the upstream does not get it",
    file="_core/http/forwarding.py",
    old="self._ours = _OUR_OWN | keys | self._tenants",
    new="self._ours = _OUR_OWN | self._tenants",
    tests=[f"{PROXY}::test_connection_cannot_take_away_what_the_upstream_must_see"],
)
break_source(
    "hop-by-hop fields come back",
    bug="what the upstream's Connection names is passed on to the client",
    file="_core/http/forwarding.py",
    old="        dropped = set(HOP_BY_HOP)\n        names",
    new="        dropped = {b'connection', b'transfer-encoding'}\n        names",
    tests=[f"{PROXY}::test_hop_by_hop_fields_are_stripped_both_ways"],
)

# --- the upstream --------------------------------------------------------------------------------

break_source(
    "a closed connection is used again",
    bug="nothing looks whether the upstream has closed a connection that rests",
    file="_proxy/connections.py",
    old="return self.is_sound and not self._is_readable()",
    new="return True",
    tests=[f"{PROXY}::test_a_connection_that_the_upstream_has_closed_is_not_used_again"],
)
break_source(
    "not reached is not known",
    bug="a connection that could not be made leaves an unknown outcome",
    file="_proxy/connections.py",
    old="class Unreachable(RequestRefused):",
    new="class Unreachable(Exception):",
    tests=[f"{PROXY}::test_no_name_and_no_tls_are_nothing_sent"],
)
break_source(
    "no key is a key",
    bug="a request without a key is told that it may be repeated",
    file="_proxy/front.py",
    old="if lost.key is not None:",
    new="if True:",
    tests=[f"{LOGS}::test_a_request_without_a_key_is_not_called_safe_to_repeat"],
)
break_source(
    "an unreachable upstream is silent",
    bug="a request that could not be sent leaves no line in the log",
    file="_proxy/upstream.py",
    old='"%s: the upstream cannot be reached, nothing was sent: %s",',
    new='"",',
    tests=[f"{LOGS}::test_an_upstream_that_cannot_be_reached_is_logged"],
)
break_source(
    "the log shows the query",
    bug="the log shows what stands behind the question mark",
    file="_proxy/upstream.py",
    old='path: str = scope["raw_path"].decode("ascii", "backslashreplace")',
    new='path: str = (scope["raw_path"] + b"?" + scope["query_string"]).decode("ascii")',
    tests=[f"{LOGS}::test_an_upstream_that_cannot_be_reached_is_logged"],
)
break_source(
    "101 is an answer",
    bug="an upstream may change to a protocol that was not asked for",
    file="_core/http/wire.py",
    old="        if status == 101:",
    new="        if status == 102:",
    tests=[f"{WIRE}::test_what_no_upstream_may_say"],
)

# --- settings ------------------------------------------------------------------------------------

break_source(
    "unknown settings are ignored",
    bug="a name that is not a setting is passed over",
    file="_values/settings.py",
    old="        if name not in names:\n",
    new="        if name == '':\n",
    tests=[f"{SETTINGS}::test_a_wrong_setting_is_reported_by_its_name"],
)
break_source(
    "the file goes before the environment",
    bug="a variable does not change what the file says",
    file="configuration/_resolving.py",
    old="**_from_file(section, document),\n            **_from_environ(section, environ),",
    new="**_from_environ(section, environ),\n            **_from_file(section, document),",
    tests=[f"{SETTINGS}::test_the_command_line_goes_before_the_environment_before_the_file"],
)
break_source(
    "memory for many workers",
    bug="several workers may each have a memory of their own",
    file="_proxy/settings.py",
    old='if self.store.startswith("memory:") and self.workers > 1:',
    new='if self.store.startswith("memory:") and self.workers > 2:',
    tests=[f"{SETTINGS}::test_a_wrong_setting_is_reported_by_its_name"],
)
break_source(
    "a cut of TLS is its end",
    bug="an answer without a length is complete although the closing alert did not come",
    file="_proxy/connections.py",
    old="(tls is None or _has_closed(tls))",
    new="True",
    tests=[
        "tests/http/test_proxy_tls.py::test_a_response_without_a_length_is_whole_only_after_the_closing_alert"
    ],
)
