"""Source mutants of the clients: retries that have a second effect, keys that others learn."""

from __future__ import annotations

from .registry import break_source

JUDGING = "tests/client/test_judging.py"
PROPAGATION = "tests/client/test_propagation.py"
REDIRECTS = "tests/client/test_redirects.py"
SENDING = "tests/client/test_sending.py"

break_source(
    "a redirect keeps the key",
    bug="the call's key is sent to the address that a redirect names",
    file="client/_redirects.py",
    old="if url != root.url:",
    new="if not url:",
    tests=[
        f"{REDIRECTS}::test_another_host_gets_a_key_of_its_own_which_is_the_same_for_each_repeat"
    ],
)
break_source(
    "a redirect has a random key",
    bug="the key of a followed redirect is new in each repeat",
    file="client/_redirects.py",
    old='Key(key).derive(f"redirect {place}")',
    new="Key.random()",
    tests=[
        f"{REDIRECTS}::test_another_host_gets_a_key_of_its_own_which_is_the_same_for_each_repeat"
    ],
)
break_source(
    "redirects share a key",
    bug="all addresses of a chain of redirects get one key",
    file="client/_redirects.py",
    old='f"{method} {url}".encode',
    new='f"{method}".encode',
    tests=[f"{REDIRECTS}::test_each_address_has_its_own_key_and_its_retries_share_it"],
)
break_source(
    "a redirected get has a key",
    bug="a redirect that became a GET carries a key",
    file="client/_redirects.py",
    old="    if method in SAFE:\n",
    new="    if not method:\n",
    tests=[f"{REDIRECTS}::test_what_becomes_a_get_has_no_key"],
)
break_source(
    "the derived key is told",
    bug="the caller is told the derived key, under which the whole call is another one",
    file="client/_redirects.py",
    old="return KeyedRequest(root.key,",
    new="return KeyedRequest(key,",
    tests=[
        f"{REDIRECTS}::test_another_host_gets_a_key_of_its_own_which_is_the_same_for_each_repeat"
    ],
)
break_source(
    "httpx leaves the key on",
    bug="httpx copies the key to a request that another transport sends",
    file="client/_transports.py",
    old="            take_off(self.policy, request.headers)\n",
    new="",
    tests=[f"{REDIRECTS}::test_a_redirect_to_where_our_part_is_not_mounted_has_no_key"],
)
break_source(
    "requests leaves the key on",
    bug="requests copies the key to a request that another adapter sends",
    file="client/requests.py",
    old="            take_off(self.policy, request.headers)\n",
    new="",
    tests=[f"{REDIRECTS}::test_a_redirect_to_where_our_part_is_not_mounted_has_no_key"],
)
break_source(
    "aiohttp forgets the call",
    bug="aiohttp takes a followed redirect for a new call",
    file="client/aiohttp.py",
    old="_redirected.set((timer, root))",
    new="_redirected.set(None)",
    tests=[
        f"{REDIRECTS}::test_another_host_gets_a_key_of_its_own_which_is_the_same_for_each_repeat"
    ],
)
break_source(
    "aiohttp takes any call for the same",
    bug="the next call of a task is taken for a redirect of the one before",
    file="client/aiohttp.py",
    old="if timer is not _timer_of(request):",
    new="if timer is None:",
    tests=[f"{REDIRECTS}::test_aiohttp_other_calls_of_a_task_are_calls_of_their_own"],
)
break_source(
    "a replay is retried",
    bug="a replayed 503 is asked for again, and will stay what it is",
    file="client/_final_answers.py",
    old="    if is_replay(answer, policy):\n        return True\n",
    new="",
    tests=[f"{JUDGING}::test_final"],
)
break_source(
    "retryable is not believed",
    bug="what a problem document says about a retry is ignored",
    file="client/_final_answers.py",
    old="        return not said\n",
    new="        return True\n",
    tests=[f"{JUDGING}::test_again"],
)
break_source(
    "every 409 means wait",
    bug="a 409 to a new key is taken for our own request at work",
    file="client/_final_answers.py",
    old="return not (may_be_running or",
    new="return not (True or",
    tests=[f"{JUDGING}::test_a_bare_409_means_wait_only_if_the_first_may_be_running"],
)
break_source(
    "Retry-After by the local clock",
    bug="a date in Retry-After is compared with this side's clock",
    file="client/_final_answers.py",
    old="(wall if now is None else now)",
    new="wall",
    tests=[f"{JUDGING}::test_retry_after_in_both_forms"],
)
break_source(
    "one attempt too many",
    bug="a call is sent once more than the policy allows",
    file="client/_sending.py",
    old="number >= policy.attempts",
    new="number > policy.attempts",
    tests=[f"{SENDING}::test_the_last_attempt_gives_what_it_got"],
)
break_source(
    "waits go past the deadline",
    bug="a wait may end after the deadline",
    file="client/_sending.py",
    old="elif now() - begun + wait >= deadline:",
    new="elif now() - begun >= deadline:",
    tests=[f"{SENDING}::test_no_wait_goes_past_the_deadline"],
)
break_source(
    "half a body is sent again",
    bug="a body that was read once is sent again, empty",
    file="client/_sending.py",
    old="and not rewind():",
    new="and rewind() is None:",
    tests=[f"{SENDING}::test_a_body_that_is_gone_ends_it"],
)
break_source(
    "the budget is endless",
    bug="retries are not counted against the budget",
    file="client/_sending.py",
    old="elif not budget.spend():",
    new="elif budget.spend() is None:",
    tests=[f"{SENDING}::test_a_spent_budget_is_reported_and_fills_again"],
)
break_source(
    "handlers do not derive",
    bug="a client inside a handler makes new keys: a retried handler has its effects twice",
    file="client/_sending.py",
    old="inside = policy.propagate and current_key() is not None",
    new="inside = False",
    tests=[f"{PROPAGATION}::test_a_retried_handler_sends_the_same_keys"],
)
break_source(
    "calls have no numbers",
    bug="two equal calls of one handler have one key: the second one is never made",
    file="propagation.py",
    old='return f"{call} #{number}"',
    new="return call",
    tests=[f"{PROPAGATION}::test_unnamed_calls_are_numbered_per_method_and_path"],
)
break_source(
    "a given key is replaced",
    bug="inject puts another key in place of the one that is there",
    file="propagation.py",
    old="    if _lines(headers, policy):\n        return headers\n",
    new="",
    tests=[f"{PROPAGATION}::test_injected_is_extracted_and_a_given_key_stays"],
)
break_source(
    "numbers are keys",
    bug="a number in a message's headers is taken for a key",
    file="propagation.py",
    old="    if isinstance(value, str):\n        return value.encode()\n",
    new="    if isinstance(value, (str, int)):\n        return str(value).encode()\n",
    tests=[f"{PROPAGATION}::test_a_key_is_text_or_bytes_and_nothing_that_could_be_printed"],
)
