"""Source mutants of the Redis store: its scripts, what it believes about servers, its round trips and its errors.

The scripts are killed by the conformance suite on a real server; what concerns servers is killed by
tests/stores/test_redis_servers.py, which needs none.
"""

from __future__ import annotations

from .registry import break_source

RULES = "tests/stores/test_redis_conformance.py::TestValkey"
SERVERS = "tests/stores/test_redis_servers.py"
REFUSALS = "tests/stores/test_redis_refusals.py"
STORE = "tests/stores/test_redis.py"
SEARCH = "tests/stores/test_redis_search.py"

LUA = "_engines/redis/lua"
REDIS = "_engines/redis"

# --- the scripts ---------------------------------------------------------------------------------

break_source(
    "redis: a takeover keeps the fence",
    bug="the next claim of a key has the fence of the last one",
    file=f"{LUA}/record.lua",
    old="return math.max(row.fence + 1, us)",
    new="return row.fence",
    tests=[f"{RULES}::test_a_takeover_is_a_new_attempt_with_a_higher_fence"],
)
break_source(
    "redis: a takeover counts a claim made ahead",
    bug="messages of a batch that never started are counted when their worker dies",
    file=f"{LUA}/claim.lua",
    old="(lapsed and string.sub(old.owner, 1, 5) == 'ahead' and 1 or 0)",
    new="0",
    tests=[f"{RULES}::test_a_claim_made_ahead_of_its_start_is_not_counted"],
)
break_source(
    "redis: the fence alone owns",
    bug="who has the fence may end the claim, whatever its token",
    file=f"{LUA}/record.lua",
    old="return row.owner == owner and row.fence == fence",
    new="return row.fence == fence",
    tests=[f"{RULES}::test_the_fence_alone_is_not_enough"],
)
break_source(
    "redis: a quick completion does not look at the fence",
    bug="the usual completion compares the owner only",
    file=f"{LUA}/complete.lua",
    old="flags < 128 and known == fence and ARGV[5]",
    new="flags < 128 and ARGV[5]",
    tests=[f"{RULES}::test_the_owner_alone_is_not_enough"],
)
break_source(
    "redis: a quick completion does not look at the owner",
    bug="the usual completion compares the fence only",
    file=f"{LUA}/complete.lua",
    old="string.sub(text, 31, 30 + string.byte(text, 30)) == owner",
    new="true",
    tests=[f"{RULES}::test_the_fence_alone_is_not_enough"],
)
break_source(
    "redis: expired records answer",
    bug="a finished record is replayed after its retention",
    file=f"{LUA}/record.lua",
    old="return row.expires > 0 and row.expires <= now",
    new="return false",
    tests=[
        f"{RULES}::test_every_later_start_has_its_cause",
        f"{RULES}::test_retention_ends_to_the_millisecond",
    ],
)
break_source(
    "redis: the quick duplicate does not look at the time",
    bug="the quick way replays what expired, if Redis has not removed it yet",
    file=f"{LUA}/claim.lua",
    old="and struct.unpack('<I6', text, 24) > now then",
    new="then",
    tests=[f"{RULES}::test_a_storm_on_an_expired_record_has_one_winner"],
)
break_source(
    "redis: a lost claim is not held",
    bug="takeover=hold is forgotten: the next claimer runs",
    file=f"{LUA}/claim.lua",
    old="local held = lapsed and old.hold",
    new="local held = false",
    tests=[f"{RULES}::test_an_expired_claim_is_held_if_its_owner_wanted_that"],
)
break_source(
    "redis: another content takes over",
    bug="a claim with another fingerprint takes over a lapsed one",
    file=f"{LUA}/claim.lua",
    old="if (differs and not mine) or not (lapsed or rested)",
    new="if not (lapsed or rested)",
    tests=[f"{RULES}::test_another_fingerprint_does_not_take_over"],
)
break_source(
    "redis: a key is never parked",
    bug="max_attempts is not compared at a claim",
    file=f"{LUA}/claim.lua",
    old="if held or counted >= tonumber(ARGV[3]) then",
    new="if held then",
    tests=[f"{RULES}::test_a_key_that_kills_its_worker_too_often_is_parked"],
)
break_source(
    "redis: renewals shorten",
    bug="a renewal replaces the lease by a shorter one",
    file=f"{LUA}/renew.lua",
    old="row.lease = math.max(row.lease, now + tonumber(ARGV[3]))",
    new="row.lease = now + tonumber(ARGV[3])",
    tests=[f"{RULES}::test_renewal_never_shortens"],
)
break_source(
    "redis: an abandoned claim counts",
    bug="a claim that was given back stays counted as an attempt",
    file=f"{LUA}/abandon.lua",
    old="now, row.attempt - 1",
    new="now, row.attempt",
    tests=[f"{RULES}::test_an_abandoned_claim_leaves_only_its_fence"],
)
break_source(
    "redis: work in progress expires",
    bug="every record gets a time to live, so that Redis removes live claims",
    file=f"{LUA}/record.lua",
    old="  if ends(row.state) then\n    redis.call('SET'",
    new="  if true then\n    redis.call('SET'",
    tests=[f"{STORE}::test_only_what_is_over_has_a_ttl"],
)
break_source(
    "redis: a sweep removes all",
    bug="the sweep does not compare the retention",
    file=f"{LUA}/sweep.lua",
    old="if not row or not expired(row) then return 0 end",
    new="if not row then return 0 end",
    tests=[f"{RULES}::test_a_sweep_keeps_records_within_their_retention"],
)
break_source(
    "redis: a tombstone keeps the result",
    bug="forget leaves the result in the record",
    file=f"{LUA}/forget.lua",
    old="row.result, row.error = '', '', nil, nil, ''",
    new="row.error = '', '', nil, ''",
    tests=[f"{RULES}::test_forgetting_erases_the_data_and_keeps_the_tombstone"],
)
break_source(
    "redis: an act has no entry",
    bug="what an operator did is not kept",
    file=f"{LUA}/record.lua",
    old="  write_audit(trail, now, action, by, why, before, retention)\n",
    new="",
    tests=[f"{RULES}::test_names_and_reasons_are_stored_exactly"],
)
break_source(
    "redis: walks carry results",
    bug="the audit log, and a search while a slot moves, transfer every result",
    file=f"{LUA}/peek.lua",
    old="string.sub(text, 1, row.size)",
    new="text",
    tests=[
        f"{REFUSALS}::test_the_audit_log_does_not_carry_results",
        f"{REFUSALS}::test_a_search_while_a_slot_moves_does_not_carry_results",
    ],
)
break_source(
    "redis: a search carries results",
    bug="a search reads large records whole before it knows their size",
    file=f"{REDIS}/record_scan.py",
    old="return bool(self._measured) and not self._is_refused and self._bytes <= limit",
    new="return not self._is_refused",
    tests=[f"{REFUSALS}::test_walks_over_all_keys_do_not_carry_results"],
)
break_source(
    "redis: a search loses what it could not read together",
    bug="records of an MGET that the server refuses are left out",
    file=f"{REDIS}/record_scan.py",
    old="                again += names\n",
    new="                again += []\n",
    tests=[
        f"{SEARCH}::test_a_user_that_may_not_read_many_at_once_searches_too",
        f"{SEARCH}::test_a_cluster_of_one_node_stays_usable_after_a_search",
    ],
)
break_source(
    "redis: a search loses what has moved",
    bug="a record whose slot moves is left out",
    file=f"{REDIS}/record_scan.py",
    old="            self.unsure.append((self._questions, failed))\n",
    new="",
    tests=[f"{REFUSALS}::test_a_search_while_a_slot_moves_does_not_carry_results"],
)
break_source(
    "redis: a search shows expired records",
    bug="a search finds records that are past their retention and not removed yet",
    file=f"{REDIS}/scan_questions.py",
    old="            0 < expires <= part.now\n",
    new="            0 < expires <= 0\n",
    tests=[f"{SEARCH}::test_questions_of_one_scan_are_answered_as_if_each_were_asked_alone"],
)
break_source(
    "redis: expired records are counted",
    bug="`stats` counts records that are past their retention and not removed yet",
    file=f"{REDIS}/scan_questions.py",
    old="+ low + (high << 32) > now",
    new="+ low + (high << 32) > 0",
    tests=[f"{SEARCH}::test_questions_of_one_scan_are_answered_as_if_each_were_asked_alone"],
)
break_source(
    "redis: nothing is announced",
    bug="waiters elsewhere are not woken by a completion",
    file=f"{LUA}/first.lua",
    old="if PUBLISH ~= '' then",
    new="if false then",
    tests=[f"{RULES}::test_a_watcher_is_woken_at_the_end"],
)

# --- what is believed about servers --------------------------------------------------------------

break_source(
    "redis: a time-out is forgotten",
    bug="a time-out does not end the word of a sentinel",
    file=f"{REDIS}/routing.py",
    old="        if isinstance(reply, Exception):\n            self.servers.distrust()\n",
    new="        if isinstance(reply, Exception):\n",
    tests=[f"{SERVERS}::test_a_time_out_on_the_lean_way_ends_a_word"],
)
break_source(
    "redis: a word is good for ever",
    bug="the sentinels are asked once",
    file=f"{REDIS}/servers.py",
    old="named is not None and self.clock() < named.until else None",
    new="named is not None else None",
    tests=[f"{SERVERS}::test_a_word_is_asked_for_once_and_again_when_it_is_old"],
)
break_source(
    "redis: late answers count",
    bug="the answer of a primary that was replaced meanwhile is believed",
    file=f"{REDIS}/servers.py",
    old="            home = yield from self._ask()\n        return home == address",
    new="            return True\n        return home == address",
    tests=[f"{SERVERS}::test_a_late_answer_of_a_replaced_primary_does_not_count"],
)
break_source(
    "redis: an act is repeated",
    bug="an operator's act that a replaced primary answered is sent to the next one",
    file=f"{REDIS}/rounds.py",
    old="            if not self._is_once:\n                todo[index] = None\n            return",
    new="            todo[index] = None\n            return",
    tests=[f"{SERVERS}::test_an_act_that_a_replaced_primary_answered_is_not_repeated"],
)
break_source(
    "redis: replicas are let in",
    bug="a new connection does not look at the role",
    file=f"{REDIS}/servers.py",
    old='if fields.get("role") != "master":',
    new='if fields.get("role") == "sentinel":',
    tests=[f"{SERVERS}::test_a_replica_is_refused_when_connecting"],
)
break_source(
    "redis: a restart goes unnoticed",
    bug="another run id at the address changes nothing",
    file=f"{REDIS}/servers.py",
    old='until = named.until if named.run in ("", run) else 0.0',
    new="until = named.until",
    tests=[f"{SERVERS}::test_another_process_at_the_address_ends_the_word"],
)
break_source(
    "redis: old sentinels are believed",
    bug="a sentinel that missed a failover leads back to the replaced primary",
    file=f"{REDIS}/servers.py",
    old="if known is None or named.epoch >= known.epoch:",
    new="if True:",
    tests=[f"{SERVERS}::test_a_sentinel_that_missed_a_failover_is_not_trusted"],
)
break_source(
    "redis: a silent sentinel is asked first, always",
    bug="each question waits for the time-out of a sentinel that is down",
    file=f"{REDIS}/servers.py",
    old="best, self._order = named, _first(sentinel, self._order)",
    new="best = named",
    tests=[f"{SERVERS}::test_a_silent_sentinel_is_met_once"],
)
break_source(
    "redis: a hole stays a hole",
    bug="a slot without a node is not looked up again",
    file=f"{REDIS}/servers.py",
    old="if not self._slots or (self._slots[slot] is None and self._refreshed_at < since):",
    new="if not self._slots:",
    tests=[f"{SERVERS}::test_a_slot_without_a_node_is_looked_up_again"],
)
break_source(
    "redis: the first map wins",
    bug="a node that was taken out of the Cluster empties the map",
    file=f"{REDIS}/servers.py",
    old="            if None not in slots:\n                break",
    new="            break",
    tests=[f"{SERVERS}::test_a_node_that_was_taken_out_does_not_empty_the_map"],
)
break_source(
    "redis: a slow node is asked about itself",
    bug="a Cluster node that was silent vouches for itself",
    file=f"{REDIS}/servers.py",
    old="            yield from self.refresh(address)\n",
    new="            yield from self.refresh()\n",
    tests=[f"{SERVERS}::test_a_node_that_was_silent_and_replaced_does_not_count"],
)
break_source(
    "redis: READONLY is final",
    bug="a write that a demoted primary refused is not sent to the new one",
    file=f"{REDIS}/rounds.py",
    old='if code == "READONLY" and not turn:',
    new='if code == "NEVER":',
    tests=[f"{SERVERS}::test_a_refused_write_is_sent_to_the_new_primary_in_the_same_round_trip"],
)

# --- errors ---------------------------------------------------------------------------------------

break_source(
    "redis: a refusal is a corrupt record",
    bug="every error that names the script blames the record",
    file=f"{REDIS}/error_messages.py",
    old='text.removeprefix("ERR ").startswith("user_script:")',
    new='"user_script" in text',
    tests=[f"{SERVERS}::test_driver_errors_become_ours"],
)
break_source(
    "redis: an error has no cause",
    bug="the driver's error is dropped",
    file=f"{REDIS}/error_messages.py",
    old="    ours.__cause__ = error\n",
    new="",
    tests=[f"{SERVERS}::test_driver_errors_become_ours"],
)
break_source(
    "redis: a refused request is forgotten",
    bug="a request whose script the server does not know is not sent again",
    file=f"{REDIS}/loop_connections.py",
    old="            if not may_repeat(why):\n",
    new="            if True:\n",
    tests=[
        "tests/stores/test_redis.py::test_requests_on_their_way_are_sent_again_when_the_scripts_are_gone"
    ],
)
break_source(
    "redis: requests overtake those on the long way",
    bug="a request is sent at once although earlier ones still wait to be sent",
    file=f"{REDIS}/loop_connections.py",
    old="        link = None if self._long_way.is_busy else self.connection.short_way()\n",
    new="        link = next(iter(self.connection._links.values()), None)\n",
    tests=[
        "tests/stores/test_redis.py::test_a_cancelled_claim_is_not_overtaken_by_what_gives_it_back"
    ],
)
break_source(
    "a driver is imported by the first call",
    bug="open does not import the async driver",
    file=f"{REDIS}/async_store.py",
    old='        require("redis.connection", "redis.asyncio.connection", "hiredis")\n',
    new="",
    tests=["tests/house/test_drivers.py::test_a_missing_driver_is_one_error_that_names_the_extra"],
)
break_source(
    "connecting is the claim's time",
    bug="an async store connects inside the window of its first claim",
    file="_runtime/loop_connection.py",
    old="            await store.ready()\n",
    new="            await asyncio.sleep(0)\n",
    tests=["tests/stores/test_first_call.py::test_a_manual_claim_too"],
)
