"""The list of attacks, what must happen then, and the tests that check it.

New tests have the mark ``@pytest.mark.attack("D8")``; those of the HTTP layer ``@pytest.mark.item("D8")``.
`ELSEWHERE` names tests in other folders. `LIMITS` says what the tests of a row cannot show.
"""

from __future__ import annotations

from typing import Final

from tests.maps.places import marked

ATTACKS: Final[dict[str, tuple[str, str]]] = {
    "D1": ("another tenant sends a known key", "it runs under its own key; it neither gets the other's answer nor learns that there is one"),
    "D2": ("keys and scopes chosen so that they look equal when joined", "different records"),
    "D3": ("using or guessing another tenant's keys in advance", "no effect across scopes"),
    "D4": ("replay after a logout or after losing a role", "authentication and permissions are checked before a replay"),
    "D5": ("private or temporary header fields in a response", "neither stored nor replayed"),
    "D6": ("CR, LF or NUL in a stored header field, also by changing the database", "refused when written and when read; not run again"),
    "D7": ("the same key with a changed body; JSON that parsers read differently", "refused as a mismatch"),
    "D8": ("malicious bytes in the store", "no code runs; reported as corrupt, not run again"),
    "D9": ("swapped or truncated ciphertext", "fails closed, not run again"),
    "D10": ("reused nonces, key rotation, a lost key", "old records stay readable, new ones use the new key, a lost key is reported"),
    "D11": ("huge keys, bodies, fields; many keys; many waiters", "limited; refused before any work is done"),
    "D12": ("text that makes a regular expression slow", "linear time"),
    "D13": ("SQL or paths in the names of tables and files", "refused when the store is opened"),
    "D14": ("no key, two keys, an empty or malformed key", "answered as the IETF draft says"),
    "D15": ("request smuggling", "400, and the connection is closed"),
    "D16": ("errors, cut streams, clients that disconnect", "nothing incomplete is stored as complete"),
    "D17": ("secrets in keys, bodies, results and URLs", "not in any log, error, repr, event or output"),
    "D18": ("the dashboard: no login, forged forms, script in keys, frames, DNS rebinding, guessed tokens", "off by default; only the loopback without a login; every form has a token, every text is escaped, no script runs; guessing is slowed"),
    "D19": ("escape sequences in keys on a terminal", "escaped"),
    "D20": ("timing of secret comparisons", "constant time"),
    "D21": ("deeply nested JSON, huge numbers, decompression bombs", "limited; a clear error"),
    "D22": ("the supply chain", "one dependency; importing does nothing; locked versions; reproducible builds"),
    "D23": ("a request to erase personal data", "erased; a late duplicate does not run again"),
    "D24": ("malformed input to every parser", "no crash, no hang"),
}  # fmt: skip

NOT_THERE: Final[dict[str, str]] = {}

LIMITS: Final[dict[str, str]] = {
    "D3": "ids are plain SHA-256, so anyone who can read the store can test guesses",
    "D9": "an older answer of the same key, put back by someone who can write to the store, is not detected",
    "D10": "a key ring is read once: a process learns of a new key when it is restarted",
    "D11": "there are no quotas per scope yet",
    "D17": "a value that is searched for in the dashboard is in the URL, and so in the access log of your server",
    "D19": "there is no CSV export",
    "D20": "owner tokens come from workers, not from senders, and are compared by the store",
    "D21": "results are not compressed, so there is no bomb to unpack",
    "D22": "msgspec is required; releases are not signed, only their sums are published",
    "D23": "in Python key by key; `twicesafe keys forget --scope` erases all keys of a scope",
}

U, H, R = "tests/unit/", "tests/http/", "tests/receiver/"
ELSEWHERE: Final[dict[str, tuple[str, ...]]] = {
    "D1": (f"{R}test_replay.py::test_scopes_keep_tenants_apart",
           f"{H}test_scope.py::test_every_principal_has_keys_of_its_own"),
    "D2": (f"{U}test_keys.py::test_moving_a_boundary_makes_another_key",
           f"{U}test_keys.py::test_look_alikes_differ", "rule:test_keys_that_look_alike_are_different",
           f"{H}test_scope.py::test_parts_of_a_scope_do_not_run_together"),
    "D3": (f"{H}test_scope.py::test_anothers_key_shows_neither_409_nor_422",
           f"{H}test_scope.py::test_credentials_are_stored_as_a_keyed_hash"),
    "D4": (f"{H}test_scope.py::test_an_outer_login_is_asked_before_a_replay",
           f"{H}test_scope.py::test_a_refusal_of_an_inner_login_is_not_kept"),
    "D6": (f"{H}test_core.py::test_what_would_break_a_message_is_refused_both_ways",
           f"{H}test_outcomes.py::test_a_tampered_row_answers_nothing_and_runs_nothing"),
    "D7": (f"{H}test_fingerprints.py::test_different_values_are_never_taken_for_equal",
           f"{U}test_fingerprint.py::test_every_two_distinct_values_have_distinct_bytes",
           f"{U}test_fingerprint.py::test_the_hash_seed_changes_nothing"),
    "D8": (f"{U}test_codecs.py::test_foreign_tags_are_plain_data",
           f"{R}test_failures.py::test_a_tampered_result_is_corrupt_and_never_run_again",
           f"{R}test_peers.py::test_15_no_pickle_anywhere"),
    "D11": (f"{U}test_keys.py::test_limits_are_bytes_and_named",
            f"{R}test_waiting.py::test_waiters_are_bounded"),
    "D13": (f"{U}test_urls.py::test_names_that_may_not_stand_in_sql",
            f"{U}test_urls.py::test_bad_urls"),
    "D14": (f"{H}test_keys.py::test_the_field_twice_is_refused",
            f"{H}test_keys.py::test_an_empty_key_is_no_missing_key",
            f"{H}test_requests.py::test_a_required_key_that_is_missing_is_refused",
            f"{H}test_requests.py::test_safe_methods_pass_with_any_key"),
    "D16": (f"{H}test_outcomes.py::test_a_cut_response_is_cut_not_stored_and_not_run_again",
            f"{H}test_outcomes.py::test_a_client_that_goes_away_loses_nothing",
            f"{H}test_outcomes.py::test_an_incomplete_upload_is_not_run_and_leaves_the_key_unused"),
    "D17": (f"{H}test_scope.py::test_neither_keys_nor_bodies_nor_credentials_are_logged",
            f"{U}test_errors.py::test_only_the_short_form_of_a_key_is_shown",
            "tests/cli/test_upkeep.py::test_a_password_in_the_url_is_not_shown",
            "tests/stores/test_mysql_opening.py::test_the_password_is_used_and_never_shown",
            "tests/stores/test_redis.py::test_an_absent_server_is_reported_at_once_and_without_the_password"),
    "D19": ("tests/cli/test_keys.py::test_nothing_in_a_key_reaches_the_terminal_raw",
            "tests/cli/test_output.py::test_visible"),
    "D21": (f"{U}test_codecs.py::test_cycles_and_depth_are_refused",
            f"{U}test_fingerprint.py::test_depth_is_bounded"),
    "D22": ("tests/house/test_import.py::test_it_touches_nothing",
            "tests/house/test_locks.py::test_every_pin_is_hashed_and_nothing_else_is_said"),
    "D23": (f"{R}test_operators.py::test_forget_erases_but_a_late_duplicate_does_not_run",
            "rule:test_forgetting_erases_the_data_and_keeps_the_tombstone"),
    "D24": (f"{U}test_codecs.py::test_random_bytes_decode_or_are_corrupt",
            f"{H}test_fuzz.py::test_whole_requests"),
}  # fmt: skip


def held_by() -> dict[str, list[str]]:
    """The tests of every attack: marked ones first."""
    attack, item = marked("attack"), marked("item")
    return {
        row: list(
            dict.fromkeys([*attack.get(row, ()), *item.get(row, ()), *ELSEWHERE.get(row, ())])
        )
        for row in ATTACKS
    }
