"""Source mutants of the HTTP rules: keys and scopes that meet, requests that are taken for one another,
responses that say too much."""

from __future__ import annotations

from .registry import break_source

CORE = "tests/http/test_core.py"
KEYS = "tests/http/test_keys.py"
PRINTS = "tests/http/test_fingerprints.py"
REPLAY = "tests/http/test_replay.py"
SCOPE = "tests/http/test_scope.py"
SIGNATURE = "tests/outbox/test_signature.py"
WEBHOOKS = "tests/http/test_webhooks.py"

break_source(
    "only the first credential line",
    bug="only the first Authorization line makes the scope",
    file="_core/http/key_field.py",
    old="                if found == wanted:\n",
    new="                if found == wanted and not values:\n",
    tests=[f"{SCOPE}::test_every_line_of_a_credential_counts"],
)
break_source(
    "credential lines run together",
    bug="the lines of a credential go into the hash without their lengths",
    file="_core/http/key_field.py",
    old='framed += len(value).to_bytes(8, "big"), value',
    new="framed.append(value)",
    tests=[f"{SCOPE}::test_every_line_of_a_credential_counts"],
)
break_source(
    "the scope secret is not used",
    bug="credentials are hashed without the secret: a reader of the store can test guesses",
    file="_core/http/key_field.py",
    old="hmac.new(secret, ",
    new='hmac.new(b"", ',
    tests=[f"{SCOPE}::test_credentials_are_stored_as_a_keyed_hash"],
)
break_source(
    "keys per operation ignore the method",
    bug="POST and PATCH of one path share their keys although keys are per operation",
    file="_core/http/rules.py",
    old='f"{request.method[:32]} {place}"',
    new='f"{place}"',
    tests=[f"{PRINTS}::test_keys_per_operation_are_a_setting"],
)
break_source(
    "a scope may be a set",
    bug="a scope function may return a set, whose order differs between processes",
    file="_core/http/rules.py",
    old="(bytes, bytearray, AbstractSet, Mapping)",
    new="(bytes, bytearray)",
    tests=[f"{CORE}::test_a_scope_function_must_return_a_name"],
)
break_source(
    "a scope may be too long for its key",
    bug="what a scope function returns is not measured: a bare InvalidKeyError",
    file="_core/http/rules.py",
    old="if not 1 <= size <= MAX_KEY_BYTES:",
    new="if not size:",
    tests=[f"{CORE}::test_a_scope_function_must_return_a_name"],
)
break_source(
    "names of the key may disagree",
    bug="a header and its alias may hold two different keys: one of them is taken",
    file="_core/http/rules.py",
    old="if any(other != first for other in others):",
    new="if len(others) > 1:",
    tests=[f"{KEYS}::test_other_names_are_a_setting"],
)
break_source(
    "every replay is exposed",
    bug="a replay names its marker to scripts although no script asked",
    file="_core/http/rules.py",
    old='self._exposed if request.has(b"origin") else ()',
    new="self._exposed",
    tests=[f"{REPLAY}::test_scripts_of_another_origin_may_read_the_mark"],
)
break_source(
    "a required key may be missing by route",
    bug="required= by route does not refuse a request without a key",
    file="_core/http/rules.py",
    old="if required is True or self._matches(self._required, request):",
    new="if required is True:",
    tests=["tests/http/test_requests.py::test_a_key_may_be_required_by_route_and_method"],
)
break_source(
    "the first of two cookies",
    bug="of two cookies that differ the first makes the scope",
    file="_core/http/message.py",
    old='return "; ".join(found) if found else None',
    new="return next(iter(found), None)",
    tests=[f"{CORE}::test_differing_cookies_are_joined_unambiguously"],
)
break_source(
    "the last of two cookies",
    bug="of two cookies that differ the last makes the scope",
    file="_core/http/message.py",
    old='return "; ".join(found) if found else None',
    new="return list(found)[-1] if found else None",
    tests=[f"{CORE}::test_differing_cookies_are_joined_unambiguously"],
)
break_source(
    "two key lines pass",
    bug="the key's field may be sent twice: the first line is the key",
    file="_core/http/key_field.py",
    old="if len(lines) > 1:",
    new="if len(lines) > 2:",
    tests=[f"{KEYS}::test_the_field_twice_is_refused"],
)
break_source(
    "keys of any length",
    bug="a key may be of any length",
    file="_core/http/key_field.py",
    old="    if not 1 <= len(key) <= most:\n        raise _wrong_size(len(key), most)\n    return key.",
    new="    if not 1 <= len(key) <= 10 * most:\n        raise _wrong_size(len(key), most)\n    return key.",
    tests=[f"{KEYS}::test_the_longest_key_is_a_setting"],
)
break_source(
    "two id lines pass",
    bug="of a webhook's id in two lines the first one is the key",
    file="_core/http/key_sources.py",
    old='if len(values) > 1 or b"," in values[0]:',
    new='if b"," in values[0]:',
    tests=[f"{WEBHOOKS}::test_an_id_in_two_lines_does_not_make_it_another_event"],
)
break_source(
    "joined id lines pass",
    bug="lines of an id that a WSGI server has joined with a comma are a new key",
    file="_core/http/key_sources.py",
    old='if len(values) > 1 or b"," in values[0]:',
    new="if len(values) > 1:",
    tests=[f"{WEBHOOKS}::test_an_id_in_two_lines_does_not_make_it_another_event"],
)
break_source(
    "blanks are part of an id",
    bug="a blank behind a webhook's id makes it another event",
    file="_core/http/key_sources.py",
    old='values[0].strip(b" \\t").decode',
    new="values[0].decode",
    tests=[f"{CORE}::test_blanks_around_an_id_are_no_part_of_it"],
)
break_source(
    "a number is its digits",
    bug="the JSON number 1 and the text 1 are one key",
    file="_core/http/key_sources.py",
    old="            return _NOT_TEXT + here\n",
    new="            return str(here)\n",
    tests=[f"{WEBHOOKS}::test_a_number_is_not_the_text_of_its_digits"],
)
break_source(
    "a text may look like a number",
    bug="the text json:1 is the key of the number 1",
    file="_core/http/key_sources.py",
    old="_NOT_TEXT + f'\"{here}\"' if here.startswith(_NOT_TEXT) else here",
    new="here",
    tests=[f"{WEBHOOKS}::test_a_number_is_not_the_text_of_its_digits"],
)
break_source(
    "the first of two members",
    bug="of two members of one name the first one is the key",
    file="_core/http/key_sources.py",
    old='if len(found) > 1:\n                raise BadKey("a member',
    new='if len(found) > 9:\n                raise BadKey("a member',
    tests=[f"{WEBHOOKS}::test_a_body_with_two_ids_or_one_of_another_kind_is_refused"],
)
break_source(
    "the first of two parameters",
    bug="of two parameters of one name the first one is the key",
    file="_core/http/key_sources.py",
    old='if len(found) > 1:\n            raise BadKey("the parameter',
    new='if len(found) > 9:\n            raise BadKey("the parameter',
    tests=[f"{KEYS}::test_a_key_may_be_in_the_query_or_the_body"],
)
break_source(
    "member names have one case",
    bug="a member in another case beside the id is not seen",
    file="_core/http/json_reading.py",
    old="if other.casefold() == folded",
    new="if other == name",
    tests=[f"{WEBHOOKS}::test_a_body_with_two_ids_or_one_of_another_kind_is_refused"],
)
break_source(
    "ids in UTF-8 only",
    bug="an id in UTF-16, which Python reads, is not found: the delivery runs each time",
    file="_core/http/json_reading.py",
    old='body.decode(json.detect_encoding(body), "surrogatepass")',
    new="body.decode()",
    tests=[f"{WEBHOOKS}::test_an_id_is_read_wherever_an_application_could_read_it"],
)
break_source(
    "sorted by the raw name",
    bug="parameters are sorted by their names as they were sent: amount=1&%61mount=900 is its reverse",
    file="_core/http/parameters.py",
    old="groups.append(plain[1].lower())",
    new="groups.append(name)",
    tests=[f"{CORE}::test_parameters_that_a_reader_could_take_for_one_keep_their_order"],
)
break_source(
    "parameter names have a case",
    bug="Amount and amount change places, although some readers take them for one",
    file="_core/http/parameters.py",
    old="groups.append(plain[1].lower())",
    new="groups.append(plain[1])",
    tests=[f"{CORE}::test_parameters_that_a_reader_could_take_for_one_keep_their_order"],
)
break_source(
    "names are not decoded",
    bug="a name with %61 is taken as it stands",
    file="_core/http/parameters.py",
    old="_PLAIN.fullmatch(percent_decoded(name))",
    new='_PLAIN.fullmatch(name.replace(b"%", b"_"))',
    tests=[f"{CORE}::test_parameters_that_a_reader_could_take_for_one_keep_their_order"],
)
break_source(
    "a semicolon ends nothing",
    bug="parameters with a semicolon change places, although some readers end them there",
    file="_core/http/parameters.py",
    old='if b";" in text or text.count',
    new="if text.count",
    tests=[f"{CORE}::test_parameters_that_a_reader_could_take_for_one_keep_their_order"],
)
break_source(
    "parameters without limit",
    bug="any number of parameters is sorted on the event loop",
    file="_core/http/parameters.py",
    old="_MOST: Final = 1000",
    new="_MOST: Final = 1_000_000_000",
    tests=[f"{CORE}::test_too_many_parameters_are_compared_as_they_came"],
)
break_source(
    "a dot is plain",
    bug="a.b and a_b change places, although PHP reads one name",
    file="_core/http/parameters.py",
    old='rb"([A-Za-z0-9_$~\\-]++)(?:',
    new='rb"([A-Za-z0-9_.$~\\-]++)(?:',
    tests=[f"{CORE}::test_parameters_that_a_reader_could_take_for_one_keep_their_order"],
)
break_source(
    "a part of a body is taken for all of it",
    bug="a body that is shorter than announced runs",
    file="_core/http/rules.py",
    old="if len(request.body) < looked.length and",
    new="if False and",
    tests=["tests/http/test_asgi.py::test_an_upload_that_is_shorter_than_announced_runs_nothing"],
)
break_source(
    "the second media type is ignored",
    bug="of two Content-Type lines only the first one counts",
    file="_core/http/fingerprint.py",
    old="_parameters(lines[0]) if len(lines) == 1 else None",
    new="_parameters(lines[0])",
    tests=[f"{CORE}::test_labels_that_say_how_to_read_a_body_count"],
)
break_source(
    "charsets are noise",
    bug="a body in another charset is compared as if it were UTF-8",
    file="_core/http/fingerprint.py",
    old='b"o" if is_foreign else _kind(media, boundary)',
    new="_kind(media, boundary)",
    tests=[f"{CORE}::test_labels_that_say_how_to_read_a_body_count"],
)
break_source(
    "encodings are noise",
    bug="the Content-Encoding label is not compared",
    file="_core/http/fingerprint.py",
    old='marks = (*content.marks, b"content-encoding", *encodings)',
    new="marks = content.marks",
    tests=[f"{CORE}::test_labels_that_say_how_to_read_a_body_count"],
)
break_source(
    "a parameter twice is its last",
    bug="of two boundary parameters the last one counts",
    file="_core/http/fingerprint.py",
    old="        if name in found:\n            return None\n",
    new="",
    tests=[f"{CORE}::test_labels_that_say_how_to_read_a_body_count"],
)
break_source(
    "parameters of the media type are noise",
    bug="application/json; v=1 equals v=2",
    file="_core/http/fingerprint.py",
    old="    return Content(media, boundary, tuple(marks), b",
    new="    return Content(media, boundary, (), b",
    tests=[f"{CORE}::test_labels_that_say_how_to_read_a_body_count"],
)
break_source(
    "boundaries are noise",
    bug="the boundary of a loose multipart body is not compared",
    file="_core/http/fingerprint.py",
    old="    if content.boundary:  #",
    new="    if not content:  #",
    tests=[f"{CORE}::test_labels_that_say_how_to_read_a_body_count"],
)
break_source(
    "boundaries inside of parts",
    bug="a boundary may be inside of a part, where lenient readers see another part",
    file="_core/http/fingerprint.py",
    old="if before or not parts or len(parts) != body.count(dashed):",
    new="if before or not parts:",
    tests=[f"{CORE}::test_labels_that_say_how_to_read_a_body_count"],
)
break_source(
    "all requests have scheme 1",
    bug="requests that scheme 1 could not tell apart are stored under scheme 1",
    file="_core/http/fingerprint.py",
    old="        scheme = SCHEME_2\n",
    new="        scheme = SCHEME_1\n",
    tests=[f"{CORE}::test_ordinary_requests_keep_scheme_1_and_only_others_have_scheme_2"],
)
break_source(
    "the query does not count",
    bug="a request to the same path with another query is the same",
    file="_core/http/fingerprint.py",
    old="request.target, query, content.media",
    new="request.target, content.media",
    tests=[f"{PRINTS}::test_another_request_under_a_known_key_is_refused"],
)
break_source(
    "members without case are two",
    bug="JSON members whose names differ in case only change places, although Go reads one",
    file="_core/http/fingerprint.py",
    old="len(set(map(str.casefold, members)))",
    new="len(members)",
    tests=[f"{CORE}::test_members_that_a_reader_could_take_for_one_have_no_form"],
)
break_source(
    "the last of equal members",
    bug="JSON with a member twice is compared by the last one",
    file="_core/http/fingerprint.py",
    old='        raise ValueError("two members have the same name")\n',
    new="        pass\n",
    tests=[f"{CORE}::test_members_that_a_reader_could_take_for_one_have_no_form"],
)
break_source(
    "a NUL in a name is a letter",
    bug="JSON names with a NUL change places, although some readers end them there",
    file="_core/http/fingerprint.py",
    old='    if b"\\\\u0000" in body:\n        return None\n',
    new="",
    tests=[f"{CORE}::test_members_that_a_reader_could_take_for_one_have_no_form"],
)
break_source(
    "numbers lose digits",
    bug="JSON numbers are compared as doubles",
    file="_core/http/fingerprint.py",
    old="    parse_float=str.encode,\n",
    new="",
    tests=[f"{CORE}::test_json_forms"],
)
break_source(
    "every field is kept",
    bug="fields that are on no list are stored and replayed, secrets included",
    file="_core/http/stored_response.py",
    old="if name in names:\n                fields",
    new="if name not in OF_ONE_PASSAGE:\n                fields",
    tests=[f"{REPLAY}::test_only_fields_that_are_listed_or_named_are_kept"],
)
break_source(
    "drop_headers is ignored",
    bug="a field that drop_headers names is stored",
    file="_core/http/stored_response.py",
    old=" - {name.lower().encode() for name in without}",
    new="",
    tests=[f"{REPLAY}::test_only_fields_that_are_listed_or_named_are_kept"],
)
break_source(
    "fields of one hop are kept",
    bug="fields that Connection names are stored and replayed",
    file="_core/http/stored_response.py",
    old="            names -= options_in(value)\n",
    new="            continue\n",
    tests=[f"{REPLAY}::test_fields_that_connection_names_are_not_replayed"],
)
break_source(
    "changed rows are replayed",
    bug="a stored response with a line break in a field, put there in the store, is sent to the client",
    file="_core/http/stored_response.py",
    old="        problem = _problem(status, headers)\n",
    new='        problem = ""\n',
    tests=[f"{CORE}::test_what_would_break_a_message_is_refused_both_ways"],
)
break_source(
    "a limit is one too small",
    bug="a response of exactly max_result_bytes is not kept",
    file="_core/http/stored_response.py",
    old="if self.size > self._policy.max_result_bytes:",
    new="if self.size >= self._policy.max_result_bytes:",
    tests=[f"{REPLAY}::test_the_limit_itself_is_kept"],
)
break_source(
    "a long response is whole",
    bug="a response longer than it announced is recorded as whole",
    file="_core/http/stored_response.py",
    old="self.size != self._declared)",
    new="self.size < self._declared)",
    tests=[f"{CORE}::test_how_a_recording_ends"],
)
break_source(
    "routes ignore the method",
    bug="a setting for POST /a is applied to each method",
    file="_core/http/routes.py",
    old="(wanted is None or wanted == method)",
    new="True",
    tests=[f"{CORE}::test_route_patterns"],
)
break_source(
    "webhooks keep redirects",
    bug="a webhook's 302 is kept: the event is never handled",
    file="_core/http/policy.py",
    old='"release": range(300, 600)',
    new='"release": range(400, 600)',
    tests=[f"{WEBHOOKS}::test_only_a_success_is_kept"],
)
break_source(
    "webhooks ask for a key",
    bug="an Idempotency-Key of the sender's makes an event run again",
    file="_core/http/policy.py",
    old='            "header": None,\n            "key_from"',
    new='            "key_from"',
    tests=[f"{WEBHOOKS}::test_a_key_of_the_senders_own_does_not_make_it_another_event"],
)
break_source(
    "cookies by name",
    bug="Set-Cookie may be kept by keep_headers",
    file="_core/http/policy.py",
    old="named not in COOKIES",
    new="True",
    tests=[f"{CORE}::test_nonsense_is_refused_by_name"],
)
break_source(
    "dots join id and body",
    bug="one signature fits the id a with the body b.c, and a.b with c",
    file="outbox/publishers/_signature.py",
    old='.replace(".", "%2E")',
    new="",
    tests=[f"{SIGNATURE}::test_a_signature_is_of_one_id_and_one_body"],
)
break_source(
    "escapes are not escaped",
    bug="one signature fits the ids a.b and a%2Eb",
    file="outbox/publishers/_signature.py",
    old='.replace("%", "%25")',
    new="",
    tests=[f"{SIGNATURE}::test_a_signature_is_of_one_id_and_one_body"],
)
break_source(
    "two times in a signature",
    bug="of two times in a signature the first one counts",
    file="outbox/publishers/_signature.py",
    old="if len(times) != 1 or",
    new="if not times or",
    tests=[f"{SIGNATURE}::test_a_time_that_is_given_twice_is_refused"],
)
break_source(
    "signatures from the future",
    bug="a signature may be from any later time",
    file="outbox/publishers/_signature.py",
    old="abs(current - int(times[0]))",
    new="(current - int(times[0]))",
    tests=[f"{SIGNATURE}::test_a_signature_from_another_time_is_refused"],
)
break_source(
    "an empty secret signs",
    bug="an empty secret is accepted",
    file="outbox/publishers/_signature.py",
    old="if not made or not all(made):",
    new="if not made:",
    tests=[f"{SIGNATURE}::test_an_empty_secret_is_refused_on_both_sides"],
)
break_source(
    "only the first secret",
    bug="of several secrets the first one is tried only",
    file="outbox/publishers/_signature.py",
    old="for one in secrets]",
    new="for one in secrets[:1]]",
    tests=[f"{SIGNATURE}::test_one_of_several_signatures_is_enough"],
)
break_source(
    "the id is signed and not the key",
    bug="the signature does not cover the key that is sent",
    file="outbox/publishers/webhook.py",
    old='int(self._clock()), headers["idempotency-key"]',
    new="int(self._clock()), message.id",
    tests=[
        "tests/outbox/test_publishers.py::test_a_signature_covers_the_key_that_is_sent_and_it_is_sent_once"
    ],
)
