"""Source mutants of the web edges: keys that leak, cut messages taken for whole, fields and routes lost."""

from __future__ import annotations

from .registry import break_source

ASGI = "tests/http/test_asgi.py"
CONTEXTS = "tests/http/test_contexts.py"
STREAMING = "tests/http/test_streaming.py"
STARLETTE = "tests/http/test_starlette.py"
DJANGO = "tests/http/test_django.py"
FASTAPI = "tests/http/test_fastapi.py"
OUTCOMES = "tests/http/test_outcomes.py"
GUARD = "tests/http/test_guard.py"

NO_BODY = "test_the_record_of_a_response_without_a_body_is_written_before_its_head_is_sent"
SERVER_CALLS = f"{CONTEXTS}::test_what_belongs_to_the_server_is_called_without_the_key"

break_source(
    "the server's send runs under the key",
    bug="the next pipelined request starts from send, and inherits the key of this one",
    file="asgi/_exchange.py",
    old="await call_in(self._context, self._send, message, waits=waits)",
    new="await self._send(message)",
    tests=[SERVER_CALLS],
)
break_source(
    "the server's receive runs under the key",
    bug="the callback that reads the connection is registered under the key",
    file="asgi/_exchange.py",
    old="await call_in(self._context, self._receive)",
    new="await self._receive()",
    tests=[SERVER_CALLS],
)
break_source(
    "only the first step is in the server's context",
    bug="a send that had to wait goes on under the key",
    file="asgi/_exchange.py",
    old="            act, given = work.send, (yield awaited)",
    new="            act, given = work.send, (yield awaited)\n            run = lambda step, *words: step(*words)",
    tests=[SERVER_CALLS],
)
break_source(
    "the claim stays in the server's context",
    bug="the task of the server goes on under the key of a request that it has answered",
    file="asgi/_middleware.py",
    old="            step.exchange.claim.leave_context()\n",
    new="            pass\n",
    tests=[SERVER_CALLS],
)
break_source(
    "a handler's task is not of the loop's own kind",
    bug="a task factory of the application does not see the tasks that run its handlers",
    file="asgi/_middleware.py",
    old="    return context.run(loop.create_task, work)\n",
    new="    return context.run(asyncio.Task, work, loop=loop)\n",
    tests=["tests/http/test_asgi.py::test_a_handler_runs_in_a_task_of_the_loops_own_kind"],
)
break_source(
    "start_response runs under the key",
    bug="a WSGI server's start_response and write are called in the claim's context",
    file="wsgi/_exchange.py",
    old="self._own.run(self._respond, status, headers, *more)",
    new="self._respond(status, headers, *more)",
    tests=[f"{CONTEXTS}::test_a_wsgi_server_is_called_without_the_key_and_gets_every_field"],
)
break_source(
    "fields of a generator are read once",
    bug="the record takes the fields of the response, and the first client gets none",
    file="asgi/_exchange.py",
    old='head = {**message, "headers": fields}',
    new="head = message",
    tests=[f"{ASGI}::test_the_fields_of_a_response_may_be_any_iterable"],
)
break_source(
    "a head without a body is sent at once",
    bug="a client that has its whole 204 retries, and its key is still in progress",
    file="asgi/_exchange.py",
    old="if self._recording.has_no_body:",
    new="if False:",
    tests=[f"{STREAMING}::{NO_BODY}"],
)
break_source(
    "a WSGI server gets a head without a body before its record",
    bug="Granian sends the head before it takes the first chunk",
    file="wsgi/_exchange.py",
    old="if self._recording.has_no_body:",
    new="if False:",
    tests=[
        f"{STREAMING}::test_wsgi_the_record_is_written_before_the_server_gets_a_response_without_a_body",
    ],
)
break_source(
    "a polite end is a whole response",
    bug="an application that knows that its client is gone ends early, and that is recorded as all of it",
    file="asgi/_exchange.py",
    old="        if not self._exchange.settled:\n            flow",
    new="        if self._exchange.settled:\n            flow",
    tests=[
        f"{ASGI}::test_a_stream_that_ends_early_without_an_error_is_not_recorded_as_complete",
    ],
)
break_source(
    "an idle event stream keeps its key",
    bug="a stream that has sent nothing yet is taken for a handler that computes",
    file="asgi/_exchange.py",
    old="self._linger_is_over and self._streams",
    new="self._linger_is_over and recording.size",
    tests=[f"{ASGI}::test_a_stream_that_never_asks_for_its_client_frees_its_key_all_the_same"],
)
break_source(
    "the client of a stream is not watched",
    bug="a stream that never asks for its client keeps its key for ever",
    file="asgi/_exchange.py",
    old="        if not self._exchange.settled:\n            self._watch_client()",
    new="        if not self._exchange.settled:\n            pass",
    tests=[f"{ASGI}::test_a_stream_that_never_asks_for_its_client_frees_its_key_all_the_same"],
)
break_source(
    "a handler that computes is told to stop",
    bug="after linger a handler that has not begun to answer is written off, and its answer is lost",
    file="asgi/_exchange.py",
    old="lingered = self._linger_is_over and self._streams",
    new="lingered = self._linger_is_over",
    tests=[f"{ASGI}::test_a_handler_without_a_response_yet_runs_to_its_end"],
)
break_source(
    "an exchange lives until its alarm",
    bug="a client that left keeps its request and response in memory for the linger time",
    file="asgi/_exchange.py",
    old="            self._alarm.cancel()  #",
    new="            pass  #",
    tests=[
        f"{ASGI}::test_a_client_that_left_keeps_nothing_in_memory_once_its_handler_has_ended",
    ],
)
break_source(
    "routes stay inside",
    bug="metrics and traces outside of the layer see no route of a request with a key",
    file="asgi/_messages.py",
    old="known[name] = self._outer[name] = value",
    new="known[name] = value",
    tests=[f"{STARLETTE}::test_layers_outside_see_the_route_of_a_request"],
)
break_source(
    "files are sent around the recording",
    bug="the handler is offered a way to send a body that never passes the layer",
    file="asgi/_messages.py",
    old="for name, each in extensions.items() if name not in _BY_FILE}",
    new="for name, each in extensions.items()}",
    tests=[f"{ASGI}::test_ways_to_send_that_cannot_be_recorded_are_not_offered"],
)
break_source(
    "a cut ASGI upload is whole",
    bug="what arrived before the client left is run as the request",
    file="asgi/_messages.py",
    old='        if message["type"] == "http.disconnect":\n            return None',
    new='        if message["type"] == "http.disconnect":\n            return b"".join(chunks)',
    tests=[f"{OUTCOMES}::test_an_incomplete_upload_is_not_run_and_leaves_the_key_unused"],
)
break_source(
    "every WSGI server tells a cut",
    bug="a chunked upload that Granian ended where it was cut is run",
    file="wsgi/_environ.py",
    old='_TELLS_A_CUT: Final = ("gunicorn", "werkzeug")',
    new='_TELLS_A_CUT: Final = ("",)',
    tests=[f"{STREAMING}::test_wsgi_a_body_whose_end_the_server_does_not_tell_is_refused"],
)
break_source(
    "a short WSGI upload is whole",
    bug="a body that is shorter than announced is run",
    file="wsgi/_environ.py",
    old='            raise RequestRefused(Problem("request-incomplete"))',
    new="            break",
    tests=[
        f"{STREAMING}::test_wsgi_a_short_body_is_refused_and_a_terminated_one_is_read_to_its_end",
    ],
)
break_source(
    "the rest of a WSGI response is not taken",
    bug="a client that left makes the outcome unknown, although the response is whole",
    file="wsgi/_exchange.py",
    old="                self._drain()\n",
    new="                pass\n",
    tests=[f"{STREAMING}::test_wsgi_an_unread_response_is_recorded_all_the_same"],
)
break_source(
    "WSGI knows POST in capitals only",
    bug="post with a key passes unprotected",
    file="wsgi/_middleware.py",
    old='environ["REQUEST_METHOD"].upper() not in rules.methods',
    new='environ["REQUEST_METHOD"] not in rules.methods',
    tests=["tests/http/test_requests.py::test_a_method_in_another_case_is_protected_too"],
)
break_source(
    "a Django view that takes its cancellation is whole",
    bug="a stream that was cut with its client and ended politely is recorded as all of it",
    file="integrations/django/_streams.py",
    old="    return 0 if task is None else task.cancelling()",
    new="    return 0",
    tests=[
        f"{DJANGO}::test_asgi_a_view_that_ends_its_cut_stream_without_an_error_is_not_recorded_as_complete",
    ],
)
break_source(
    "Django's unread bodies are empty bodies",
    bug="under WSGI any two chunked requests with one key are the same request",
    file="integrations/django/_middleware.py",
    old="if not announced.isdigit() and _hides_its_body(request):",
    new="if announced and _hides_its_body(request):",
    tests=[f"{DJANGO}::test_a_body_in_chunks_is_whole_or_refused"],
)
break_source(
    "Django's own closers come first",
    bug="the view's stream is closed before the layer has taken the rest of it",
    file="integrations/django/_middleware.py",
    old="    closers.insert(0, closers.pop())",
    new="    closers.append(closers.pop())",
    tests=[f"{DJANGO}::test_wsgi_a_stream_that_its_server_closes_early_is_recorded_whole"],
)
break_source(
    "Django's tests write to the real store",
    bug="a user's tests leave keys in the store of the settings",
    file="integrations/django/_settings.py",
    old='found.get("test_store", "memory://") if is_tested() else found["store"]',
    new='found["store"]',
    tests=[f"{DJANGO}::test_in_tests_the_store_is_another_one"],
)
break_source(
    "OpenAPI tells the key twice",
    bug="a handler that declares the header itself has it twice in the document",
    file="integrations/fastapi.py",
    old='each["name"].lower() != header.lower()',
    new='each["name"] != header',
    tests=[f"{FASTAPI}::test_openapi_says_what_the_policy_does"],
)
break_source(
    "OpenAPI says that every key may be missing",
    bug="operations that need no key document the refusal of a request without one",
    file="integrations/fastapi.py",
    old='if name != "key-missing" or required:',
    new="if name:",
    tests=[f"{FASTAPI}::test_openapi_says_what_the_policy_does"],
)
break_source(
    "the receiver's codec is left out",
    bug="responses are stored without the codec that encrypts everything else",
    file="_edges/http_guard.py",
    old="if given.codec is not None and policy.codec is RESPONSE_CODEC:",
    new="if given.codec is not None and policy.codec is None:",
    tests=[f"{GUARD}::test_a_codec_that_would_be_left_out_is_an_error"],
)
break_source(
    "the receiver's policy is ignored in silence",
    bug="without an HttpPolicy the retention of the receiver does not count",
    file="_edges/http_guard.py",
    old="**{name: getattr(receiver.policy, name) for name in _SHARED}",
    new="**{name: getattr(Policy(), name) for name in _SHARED}",
    tests=[f"{GUARD}::test_without_an_http_policy_the_receivers_own_decides_what_both_know"],
)
break_source(
    "an outage of the claim is silent",
    bug="a store that is away behind a middleware or a claim by hand is told to nobody",
    file="_core/delivery.py",
    old='        call.notify(ev.StoreFailed(call.key, "claim", cause_of(error)))\n        raise',
    new="        raise",
    tests=["tests/receiver/test_outage_events.py::test_a_claim_by_hand"],
)
break_source(
    "an outage of a release is silent",
    bug="a claim that could not be given back or held is told to nobody",
    file="_core/claim_ends.py",
    old="                call.notify(StoreFailed(call.key, ask.op, cause_of(error)))\n",
    new="",
    tests=["tests/receiver/test_outage_events.py::test_a_claim_by_hand"],
)

FLOW = "_core/http/flow.py"
break_source(
    "a layer inside waits for the claim around it",
    bug="two middlewares on one store: the inner one refuses the request that the outer one runs",
    file=FLOW,
    old="    if claim.is_held_by_caller:  #",
    new="    if False:  #",
    tests=["tests/http/test_flow.py::test_the_way_in"],
)
break_source(
    "a store that is away runs the request",
    bug="with outage='refuse' a request runs although its repeat could not be recognised",
    file=FLOW,
    old='if isinstance(error, StoreUnavailableError) and rules.policy.outage == "run":',
    new="if isinstance(error, StoreUnavailableError):",
    tests=["tests/http/test_flow.py::test_the_way_in"],
)
break_source(
    "a replay keeps its claim open",
    bug="each replay leaves a flow run behind: its waiters in this process are never woken",
    file="receiver/_claim.py",
    old="            run.end()  # a duplicate",
    new="            # a duplicate",
    tests=["tests/http/test_flow.py::test_the_claim_of_a_duplicate_ends_when_it_is_entered"],
)
break_source(
    "an unknown outcome runs again",
    bug="a cut response lets a retry run on every route",
    file=FLOW,
    old="        if self.may_retry:\n            return LeaveClaim(self.claim, error)\n",
    new="        return LeaveClaim(self.claim, error)\n",
    tests=["tests/http/test_flow.py::test_every_ending_tells_the_store_and_the_client"],
)
break_source(
    "a refusal after the response has begun releases the key",
    bug="an application that refuses in the middle of its response is run again",
    file=FLOW,
    old="if isinstance(error, RequestRefused) and not self.recording.status:",
    new="if isinstance(error, RequestRefused):",
    tests=["tests/http/test_flow.py::test_every_ending_tells_the_store_and_the_client"],
)
break_source(
    "a stream that the server cut is done",
    bug="a response that ended with its client, and fits, is recorded as done",
    file=FLOW,
    old="        if self.is_not_kept(lingered=lingered):\n",
    new="        if True:\n",
    tests=["tests/http/test_flow.py::test_every_ending_tells_the_store_and_the_client"],
)
break_source(
    "a Django stream that lingers on is held",
    bug="behind Django a stream that outlasts linger waits for an operator; elsewhere it is done",
    file="integrations/django/_streams.py",
    old="        exchange.has_lingered = lambda: time.monotonic() > until\n",
    new="",
    tests=[f"{DJANGO}::test_wsgi_a_stream_that_outlasts_linger_is_done_without_a_result"],
)
break_source(
    "a completed claim refuses duplicates until its block ends",
    bug="a client that retries as soon as it has its response gets 409 while background tasks run",
    file="receiver/_claim.py",
    old="        self._flow_run.leave_flight()  # from here on a duplicate is answered, not refused\n",
    new="",
    tests=[
        "tests/http/test_contexts.py::test_a_wsgi_server_is_called_without_the_key_and_gets_every_field",
        "tests/receiver/test_manual_claim.py::test_a_completed_claim_is_answered_before_its_block_ends_async",
    ],
)
