"""The end of a key: what the store refuses, and what never gets through; and the look before a claim."""

from __future__ import annotations

from .registry import break_source

__all__: list[str] = []

REFUSED = "tests/receiver/test_refused_payloads.py::"
INBOX = (
    "tests/inbox/test_failures.py::"
    "test_a_result_that_the_database_refuses_is_an_error_and_no_effect"
)

break_source(
    "a refusal is raised and the claim is left to its lease",
    bug="an error of the store that is no outage is not followed by the end without its payload",
    file="_core/outcome_recording.py",
    old="        if not isinstance(self.reply, StoreUnavailableError):\n            return True\n",
    new="        if not isinstance(self.reply, StoreUnavailableError):\n            return False\n",
    tests=[f"{REFUSED}test_a_refusal_is_not_asked_twice"],
)

break_source(
    "an outage drops the result",
    bug="tries that fail together with their renewals count against the result",
    file="_core/outcome_recording.py",
    old="        if reply is Ack.OK:",
    new="        if reply is Ack.OK or isinstance(reply, Exception):",
    tests=[f"{REFUSED}test_an_outage_drops_nothing"],
)

break_source(
    "a refused renewal drops the result",
    bug="a claim that the store no longer renews counts against its payload, although the record may have it",
    file="_core/outcome_recording.py",
    old="        if reply is Ack.OK:",
    new="        if isinstance(reply, Ack):",
    tests=[f"{REFUSED}test_a_result_that_is_recorded_is_not_called_lost"],
)

break_source(
    "what is tried again is joined with others",
    bug="the tries that decide about a payload travel in company",
    file="_core/outcome_recording.py",
    old="yield replace(one.ask, alone=True)",
    new="yield one.ask",
    tests=[f"{REFUSED}test_what_never_gets_through_is_tried_some_times"],
)

break_source(
    "a payload that never gets through is tried until the lease ends",
    bug="the number of tries alone is not counted",
    file="_core/outcome_recording.py",
    old="        one.alone += isinstance(error, StoreUnavailableError)",
    new="        one.alone += 0",
    tests=[f"{REFUSED}test_done_without_its_result_soon_and_never_again"],
)

break_source(
    "the end without its payload keeps the payload",
    bug="the refused result is sent once more",
    file="_core/outcome_recording.py",
    old='        changes["result"] = None',
    new='        changes["result"] = ask.result',
    tests=[f"{REFUSED}test_a_refusal_is_not_asked_twice"],
)

break_source(
    "a refused failure loses its name",
    bug="a remembered failure that is refused is recorded without the name of its type",
    file="_core/outcome_recording.py",
    old='{"error": ask.error[:200].encode("ascii", "replace").decode()}',
    new='{"error": ""}',
    tests=[f"{REFUSED}test_a_remembered_failure"],
)

break_source(
    "the caller is not told that its result was dropped",
    bug="a value is returned whose duplicates get an error",
    file="_core/settling.py",
    old="    return recording.ask, ack, problem or recording.problem(call, reply)",
    new="    return recording.ask, ack, problem",
    tests=[f"{REFUSED}test_done_without_its_result_soon_and_never_again"],
)

break_source(
    "who waits in the same process gets the dropped result",
    bug="the landing holds what was asked first, and not what was recorded",
    file="_core/settling.py",
    old="    return recording.ask, ack, problem",
    new="    return ask, ack, problem",
    tests=[f"{REFUSED}test_who_waits_in_the_same_process_gets_no_result_either"],
)

break_source(
    "a failure whose name is refused is not given back",
    bug="a refused Fail is tried again with the same name",
    file="_core/settling.py",
    old="                ask = without_payload(ask)",
    new="                yield Sleep(0)",
    tests=[f"{REFUSED}test_a_failure_whose_name_is_refused_is_given_back_all_the_same"],
)

break_source(
    "a refused result inside a transaction is not counted",
    bug="the database's refusal is raised as it is, and the attempt is forgotten",
    file="_core/inbox_flow.py",
    old="        if not error.retryable:\n",
    new="        if error is None:\n",
    tests=[f"{INBOX}[sqlite3-required]"],
)

INTERRUPTED = "tests/inbox/test_failures.py::test_work_that_an_interrupted_attempt_left_running_has_lost_its_claim"
UNDONE = "tests/receiver/test_decorator.py::test_work_that_is_still_to_be_done_is_no_answer"
CARRIES = (
    "tests/receiver/test_decorator.py::test_what_a_function_carries_with_it_must_be_in_its_scope"
)

break_source(
    "a local function's defaults are not looked at",
    bug="two functions of one factory differ by a default argument, and share their keys",
    file="_core/handler_scope.py",
    old="if local and keyed:",
    new="if False:",
    tests=[f"{CARRIES}[a default]", f"{CARRIES}[a keyword default]"],
)

break_source(
    "a wrapper's own variables are not looked at",
    bug="two wrappers around one function differ in a variable of theirs, and share their keys",
    file="_core/handler_scope.py",
    old="if local or _is_named(layers):",
    new="if False:",
    tests=[f"{CARRIES}[a wrapper]", f"{CARRIES}[a wrapper of a local function]"],
)

break_source(
    "a namespace of exec is its module",
    bug="equal code in two namespaces of one name shares its keys",
    file="_core/handler_scope.py",
    old='if inner.__globals__ is not getattr(module, "__dict__", None) and',
    new="if inner.__globals__ is None and",
    tests=[f"{CARRIES}[a namespace of exec]"],
)

break_source(
    "a coroutine that an async handler returns is its answer",
    bug="an async handler that forgot an await is recorded as completed, though nothing ran",
    file="_runtime/flow_run.py",
    old="""                        time_limit.reset(before)
    except BaseException as error:
        is_over = limit is not None and limit.expired()
        if is_over and type(error) is TimeoutError and not error.args:  # asyncio's own has no text
            error.args = (f"it did not end within timeout={seconds:g} s, and was cancelled",)
        return Raised(error)
    finally:
        if token is not None:
            active.reset(token)
    if type(value) is CoroutineType:
""",
    new="""                        time_limit.reset(before)
    except BaseException as error:
        is_over = limit is not None and limit.expired()
        if is_over and type(error) is TimeoutError and not error.args:  # asyncio's own has no text
            error.args = (f"it did not end within timeout={seconds:g} s, and was cancelled",)
        return Raised(error)
    finally:
        if token is not None:
            active.reset(token)
    if False:
""",
    tests=[UNDONE],
)

RECALL = "tests/receiver/test_recall.py::"
MEMORY = "tests/conformance/test_memory.py::TestMemory::"

break_source(
    "a look tells what has expired",
    bug="a repeat on an embedded store gets an answer whose retention is over",
    file="_core/lifecycle.py",
    old=" and not 0 < expires_at <= now:",
    new=":",
    tests=[f"{MEMORY}test_recall_does_not_return_expired_answers"],
)

break_source(
    "a look does not compare the payload",
    bug="a repeat with another payload gets the answer to the first one",
    file="receiver/_base.py",
    old="is _REPLAY and call.fingerprint in (None, answer.fingerprint):\n            return outcome_of(call, answer)\n",
    new="is _REPLAY:\n            return outcome_of(call, answer)\n",
    tests=[f"{RECALL}test_another_payload_is_still_refused"],
)

break_source(
    "nobody looks",
    bug="every repeat on an embedded store makes a claim",
    file="_runtime/shared_state.py",
    old="store.recall if store.recalls else None",
    new="None",
    tests=[f"{RECALL}test_a_repeat_makes_no_claim"],
)

break_source(
    "an interrupted handler's claim is not over",
    bug="what an interrupted handler left running is not told to stop",
    file="_runtime/flow_run.py",
    old="        value = run()\n    except BaseException as error:\n",
    new="        value = run()\n    except Exception as error:\n",
    tests=[f"{INTERRUPTED}[sqlite3]"],
)

break_source(
    "an interrupted attempt is counted",
    bug="a cancellation in an inbox handler counts as a failed attempt, and parks the key",
    file="_core/inbox_flow.py",
    old="    return call.decide is not None and not is_cancelled\n",
    new="    return True\n",
    tests=[f"{INTERRUPTED}[sqlite3]"],
)

MISTAKEN = (
    "tests/inbox/test_inbox.py::"
    "test_a_mistaken_database_is_reported_also_when_its_driver_writes_the_same_placeholders"
)

break_source(
    "an inbox takes another engine's connection",
    bug="statements are looked up by the placeholder alone, which two engines share",
    file="_runtime/transaction.py",
    old="language = transaction.dialect, transaction.style",
    new='language = "", transaction.style',
    tests=[MISTAKEN],
)

FIRST = "tests/inbox/test_connection_first.py::test_a_call_that_is_complete_is_left_as_it_is"

break_source(
    "a complete call gets the connection too",
    bug="a handler that takes what it is given gets the connection in front of it",
    file="_core/handler_profile.py",
    old="return given == required",
    new="return given >= required",
    tests=[f"{FIRST}[nothing-args0-kwargs0]"],
)

break_source(
    "a closed receiver connects again",
    bug="after close a call opens a connection that nothing closes",
    file="_runtime/shared_state.py",
    old='self.store, self.cache, self.recall = closed(store, "receiver"), None, None',
    new="self.cache, self.recall = None, None",
    tests=["tests/receiver/test_after_close.py::test_a_receiver[process]"],
)
