"""The SQLite store: its file, its errors, its forks, and the calls that share a write."""

from __future__ import annotations

from .registry import break_source

__all__: list[str] = []

FILES = "tests/stores/test_sqlite_files.py::"
RULES = "tests/conformance/test_sqlite.py::TestSqlite::"

break_source(
    "a file that was replaced is written to",
    bug="the number of the file at the path is not compared",
    file="_engines/sqlite/database_file.py",
    old="        elif self._identity != here:",
    new="        elif self._identity is here:",
    tests=[f"{FILES}test_a_copy_that_is_put_in_place_is_another_file"],
)

break_source(
    "writes are not checked against the file",
    bug="only readers notice that the file is another one",
    file="_engines/sqlite/connections.py",
    old="            answer = drive(program, self._executor(cursor))\n            self._file.check()\n",
    new="            answer = drive(program, self._executor(cursor))\n",
    tests=[f"{FILES}test_no_key_runs_when_the_file_is_another"],
)

break_source(
    "one look at the file is enough",
    bug="after its first look the store never notices that the file is another one",
    file="_engines/sqlite/database_file.py",
    old="looked + LOOK_EVERY",
    new="looked + 1e9",
    tests=[f"{FILES}test_a_look_holds_for_a_millisecond_and_not_for_a_new_connection"],
)

break_source(
    "a new connection trusts an old look",
    bug="a connection is opened to another file that was put in place in the last millisecond",
    file="_engines/sqlite/database_file.py",
    old="            self._create()\n        else:\n            self.look()",
    new="            self._create()\n        else:\n            self.check()",
    tests=[f"{FILES}test_a_look_holds_for_a_millisecond_and_not_for_a_new_connection"],
)

break_source(
    "a removed file is made again",
    bug="a later connection makes the file that is not there",
    file="_engines/sqlite/database_file.py",
    old='            raise self._gone("removed") from error',
    new="            return",
    tests=[f"{FILES}test_no_key_runs_when_the_file_is_another"],
)

break_source(
    "a lost file is told at every call",
    bug="the log has the same error again and again",
    file="_engines/sqlite/database_file.py",
    old="            self._is_logged = True\n",
    new="            self._is_logged = False\n",
    tests=[f"{FILES}test_no_key_runs_when_the_file_is_another"],
)

break_source(
    "others may read new files",
    bug="files are made with the mode that SQLite chooses",
    file="_engines/sqlite/database_file.py",
    old="new, 0o600))",
    new="new, 0o644))",
    tests=[f"{FILES}test_new_files_are_their_owners_alone"],
)

break_source(
    "the default folder is readable",
    bug="the folder of the default store is made with the usual mode",
    file="stores/_urls.py",
    old="folder.mkdir(mode=0o700, ",
    new="folder.mkdir(",
    tests=[f"{FILES}test_the_folder_of_the_default_store_is_private"],
)

break_source(
    "the doctor does not see a readable file",
    bug="the group's right to read is not looked at",
    file="_engines/sqlite/database_file.py",
    old="& 0o077",
    new="& 0o001",
    tests=[f"{FILES}test_a_file_that_is_there_keeps_its_mode_and_the_doctor_warns"],
)

break_source(
    "an empty URL is the default",
    bug="Receiver.open('') opens the file in the user's folder",
    file="receiver/_receiver.py",
    old="open_store(default_url() if url is None else url)",
    new="open_store(url or default_url())",
    tests=[f"{FILES}test_an_empty_url_is_not_the_default"],
)

break_source(
    "a payload that is too big is an outage",
    bug="SQLITE_CONSTRAINT is tried again and again",
    file="_engines/sqlite/database_file.py",
    old="            sqlite3.IntegrityError,\n",
    new="",
    tests=["tests/stores/test_sqlite_full.py::test_a_constraint_is_a_refusal"],
)

break_source(
    "a fork carries open connections",
    bug="the connections are not closed before a fork",
    file="_engines/sqlite/connections.py",
    old="            self._disconnect()\n            fork.clean = True\n",
    new="            fork.clean = True\n",
    tests=[f"{FILES}test_nothing_is_open_while_a_process_forks"],
)

break_source(
    "what must be alone is joined in the lane",
    bug="the lane takes a request along that is to travel by itself",
    file="stores/_group_commit.py",
    old='    return getattr(request, "alone", False)',
    new="    return False",
    tests=["tests/stores/test_group_commit.py::test_what_must_be_alone_is_not_taken_along"],
)

break_source(
    "the next write does not wait for answered callers",
    bug="a transaction starts while callers of the last one wake up, and leaves their requests out",
    file="stores/_group_commit.py",
    old="            return self._last_to_wake is None and self._line[0] is ticket\n",
    new="            return self._line[0] is ticket\n",
    tests=[
        "tests/stores/test_group_commit.py::test_answered_callers_wake_one_after_the_other_and_the_next_write_waits_for_the_last"
    ],
)

break_source(
    "an interrupted caller stops the wake-ups",
    bug="a caller that is interrupted after its answer does not wake the next one",
    file="stores/_group_commit.py",
    old="        finally:\n            self._wake_following(ticket)\n",
    new="        self._wake_following(ticket)\n",
    tests=["tests/stores/test_group_commit.py::test_an_interrupted_caller_wakes_the_next_one"],
)

break_source(
    "the floor is not compared",
    bug="a claim uses the next fence that its process knows, although a sweep elsewhere used it up",
    file="_engines/sqlite/programs.py",
    old='" WHERE floor = ? ON CONFLICT',
    new='" WHERE floor >= ? ON CONFLICT',
    tests=[
        "tests/stores/test_sql_beliefs.py::test_sqlite_the_floor_is_compared_by_every_claim[False]"
    ],
)

break_source(
    "single statements are not checked against the file",
    bug="a claim and a completion in one statement do not notice that the file is another one",
    file="_engines/sqlite/requests.py",
    old="values).rowcount\n            if monotonic() >= self._file.next_look:\n                self._file.look()\n",
    new="values).rowcount\n",
    tests=[f"{FILES}test_a_new_key_finds_another_file"],
)

break_source(
    "an interrupted look stays open",
    bug="a statement that was interrupted keeps its snapshot, and nothing can be written any more",
    file="_engines/sqlite/requests.py",
    old="            self._close_writer()  # an open statement would keep its snapshot\n",
    new="",
    tests=["tests/receiver/test_recall.py::test_an_interrupted_look_leaves_no_statement_open"],
)

AMONG_NEW = "tests/receiver/test_recall.py::"

break_source(
    "sqlite: a single claim does not compare the payload",
    bug="a repeat with another payload gets the answer to the first one, if its claim is the one that looks",
    file="_core/lifecycle.py",
    old=" and ask.fingerprint in (None, recalled.fingerprint)",
    new="",
    tests=[
        f"{RULES}test_another_fingerprint_is_a_mismatch_in_every_state",
        f"{AMONG_NEW}test_claims_that_look_themselves_stop_after_many_new_keys_until_a_repeat",
    ],
)

break_source(
    "sqlite: claims look at every new key",
    bug="a claim whose caller did not look always looks, which is one of three statements",
    file="_engines/sqlite/requests.py",
    old="if not ask.looked and self._empty_looks < EMPTY_LOOKS:",
    new="if not ask.looked:",
    tests=[f"{AMONG_NEW}test_claims_that_look_themselves_stop_after_many_new_keys_until_a_repeat"],
)

break_source(
    "sqlite: a repeat among new keys changes nothing",
    bug="once all keys were new for a while, every repeat costs a claim, and waits for other writers",
    file="_engines/sqlite/requests.py",
    old="                    self._empty_looks = 0  # a look would have found it, without waiting\n",
    new="                    pass\n",
    tests=[
        f"{AMONG_NEW}test_after_a_repeat_among_new_keys_the_store_looks_again",
        f"{AMONG_NEW}test_a_repeat_among_new_keys_is_answered_while_the_file_is_locked",
    ],
)
