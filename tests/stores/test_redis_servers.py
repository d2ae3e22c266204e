"""What is believed about Redis servers, and every event that makes it be asked again. No server here.

`Network` answers flights as servers would: a script of replies per address, an exception for one that
cannot be reached. A flight takes a millisecond, unless a test says more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    ResponseError,
)

from twicesafe import (
    AsyncReceiver,
    ConfigurationError,
    CorruptRecordError,
    Receiver,
    StoreUnavailableError,
)
from twicesafe._core.driving import drive
from twicesafe._core.protocol import Count
from twicesafe._engines.redis.error_messages import MigratingError, explain
from twicesafe._engines.redis.programs import RedisPrograms
from twicesafe._engines.redis.routed_commands import PlainCommand, ScriptCall
from twicesafe._engines.redis.routing import Router
from twicesafe._engines.redis.scripts import Script, Scripts
from twicesafe._engines.redis.servers import NotPrimaryError, RoundTrip, Sentinels, Slots, slot_of
from twicesafe._engines.redis.settings import Address, Settings

A, B, C = (Address(host, 6379) for host in "abc")
S1, S2, S3 = (Address(host, 26379, sentinel=True) for host in ("s1", "s2", "s3"))

READ = Script("read", "return 1")
ONCE = ScriptCall(READ, (b"{k}",), (), repeatable=False)
CALL = ScriptCall(READ, (b"{k}",), ())


class Network:
    def __init__(self) -> None:
        self.now = 100.0
        self.asked: list[tuple[Address, bytes]] = []
        self.answers: dict[Address, Callable[[tuple[Any, ...]], Any]] = {}

    def clock(self) -> float:
        return self.now

    def fly(self, flight: RoundTrip) -> dict[Address, Any]:
        landed: dict[Address, Any] = {}
        self.now += 0.001
        for address, lines in flight.lines.items():
            self.asked += [(address, line[0]) for line in lines]
            try:
                landed[address] = [self.answers[address](line) for line in lines]
            except (OSError, TimeoutError) as error:
                landed[address] = error
            except KeyError:
                landed[address] = ConnectionRefusedError(str(address))
        return landed

    def count(self, address: Address) -> int:
        return sum(asked == address for asked, _ in self.asked)


def sentinel(primary: Address, epoch: int = 0, down_after: int = 30_000) -> Callable[..., Any]:
    def answer(line: tuple[Any, ...]) -> Any:
        if line[1] == b"MASTER":
            return [
                b"config-epoch", str(epoch).encode(),
                b"down-after-milliseconds", str(down_after).encode(),
            ]  # fmt: skip
        return [primary.host.encode(), str(primary.port).encode()]

    return answer


def silent(_: Any) -> Any:
    raise TimeoutError


def cut(_: Any) -> Any:
    raise ConnectionResetError


@pytest.fixture
def net() -> Network:
    return Network()


def watched(net: Network, query: str = "") -> Router:
    settings = Settings.of(f"redis+sentinel://s1,s2,s3/main{query}")
    return Router(settings, Sentinels(settings, net.clock))


def clustered(net: Network, *slots: tuple[int, int, Address]) -> Router:
    settings = Settings.of("redis+cluster://a,b,c")
    router = Router(settings, Slots(settings, net.clock))
    if slots:
        for address in (A, B, C):
            net.answers[address] = node(*slots)
    return router


def node(*slots: tuple[int, int, Address], reply: Any = 0) -> Callable[..., Any]:
    def answer(line: tuple[Any, ...]) -> Any:
        if line[0] == b"CLUSTER":
            return [[low, high, [at.host.encode(), at.port, b"id"]] for low, high, at in slots]
        return reply() if callable(reply) else reply

    return answer


def ask(router: Router, net: Network, *commands: Any) -> list[Any]:
    return drive(router.run(commands or [CALL]), net.fly)


# --- the sentinels' word -------------------------------------------------------------------------


def test_a_word_is_asked_for_once_and_again_when_it_is_old(net: Network):
    router = watched(net)
    net.answers = {S1: sentinel(A), A: lambda _: 7}
    for _ in range(5):
        assert ask(router, net) == [7]
    assert net.count(S1) == 2, "one flight of two lines"
    net.now += 1.01
    net.answers = {S1: sentinel(B), A: lambda _: 7, B: lambda _: 8}
    assert ask(router, net) == [8]


def test_a_word_is_good_for_half_the_time_that_a_failover_takes(net: Network):
    router = watched(net)
    net.answers = {S1: sentinel(A, down_after=500), A: lambda _: 7}
    ask(router, net)
    assert router.direct == A
    net.now += 0.26
    assert router.direct is None


@pytest.mark.parametrize("trouble", [silent, cut, lambda _: ReadOnlyError("x")])
def test_trouble_ends_a_word(net: Network, trouble: Any):
    router = watched(net)
    net.answers = {S1: sentinel(A), A: lambda _: 7, B: lambda _: 8}
    assert ask(router, net) == [7]
    net.answers |= {S1: sentinel(B), A: trouble}
    (first,) = ask(router, net)
    assert first == 8 or isinstance(first, StoreUnavailableError)
    assert ask(router, net) == [8]


@pytest.mark.parametrize("code", ["LOADING x", "NOREPLICAS x", "MASTERDOWN x", "CLUSTERDOWN x"])
def test_a_server_that_takes_no_writes_ends_a_word(net: Network, code: str):
    router = watched(net)
    net.answers = {S1: sentinel(A), A: lambda _: ResponseError(code), B: lambda _: 8}
    assert isinstance(ask(router, net)[0], StoreUnavailableError)
    net.answers |= {S1: sentinel(B)}
    assert ask(router, net) == [8]


def test_a_time_out_on_the_lean_way_ends_a_word(net: Network):
    router = watched(net)
    net.answers = {S1: sentinel(A), A: lambda _: 7}
    ask(router, net)
    assert not router.is_plain(A, TimeoutError())
    assert router.direct is None


def test_a_lean_answer_counts_only_while_the_word_is_good(net: Network):
    router = watched(net)
    net.answers = {S1: sentinel(A), A: lambda _: 7}
    ask(router, net)
    assert router.is_plain(A, 7)
    assert not router.is_plain(B, 7)
    net.now += 2
    assert not router.is_plain(A, 7)


def test_a_refused_write_is_sent_to_the_new_primary_in_the_same_round_trip(net: Network):
    router = watched(net)
    net.answers = {S1: sentinel(A), A: lambda _: 7, B: lambda _: 8}
    ask(router, net)
    net.answers |= {S1: sentinel(B), A: lambda _: ReadOnlyError("x")}
    assert ask(router, net, ONCE) == [8], "nothing was written, so this may be sent again"


def late(net: Network, reply: Any) -> Callable[[Any], Any]:
    def answer(_: Any) -> Any:
        net.now += 3
        return reply

    return answer


def test_a_late_answer_counts_if_the_server_is_still_the_primary(net: Network):
    router = watched(net)
    net.answers = {S1: sentinel(A), A: late(net, 7)}
    assert ask(router, net) == [7]
    assert net.count(S1) == 4


def test_a_late_answer_of_a_replaced_primary_does_not_count(net: Network):
    router = watched(net)
    net.answers = {S1: sentinel(A), A: lambda _: 7, B: lambda _: 8}
    ask(router, net)
    net.answers[A] = late(net, 7)
    net.answers[S1] = sentinel(B)
    assert ask(router, net) == [8]


def test_an_act_that_a_replaced_primary_answered_is_not_repeated(net: Network):
    router = watched(net)
    acts: list[Address] = []

    def act(at: Address) -> Callable[[Any], Any]:
        return lambda _: acts.append(at) or late(net, 0)(None)  # type: ignore[func-returns-value]

    net.answers = {A: act(A), B: act(B)}
    net.answers[S1] = lambda line: sentinel(B if acts else A)(line)  # noqa: PLW0108
    (reply,) = ask(router, net, ONCE)
    assert isinstance(reply, StoreUnavailableError)
    assert acts == [A]


def test_if_the_sentinels_fall_silent_a_late_answer_does_not_count(net: Network):
    router = watched(net)
    net.answers = {S1: sentinel(A), A: lambda _: 7}
    ask(router, net)
    net.answers = {A: late(net, 7)}
    (reply,) = ask(router, net)
    assert isinstance(reply, StoreUnavailableError)


def test_a_silent_sentinel_is_met_once(net: Network):
    router = watched(net)
    net.answers = {S1: silent, S2: sentinel(A), A: lambda _: 7}
    for _ in range(3):
        assert ask(router, net) == [7]
        net.now += 2
    assert net.count(S1) == 2
    assert net.count(S2) == 6


def test_a_sentinel_that_missed_a_failover_is_not_trusted(net: Network):
    router = watched(net)
    net.answers = {S1: sentinel(B, epoch=5), A: lambda _: 7, B: lambda _: 8}
    assert ask(router, net) == [8]
    net.now += 2
    net.answers |= {S1: sentinel(A, epoch=4), S2: sentinel(B, epoch=5)}
    assert ask(router, net) == [8]


def test_sentinels_that_were_set_up_again_are_trusted(net: Network):
    router = watched(net)
    net.answers = {S1: sentinel(B, epoch=5), A: lambda _: 7, B: lambda _: 8}
    assert ask(router, net) == [8]
    net.now += 2
    net.answers |= dict.fromkeys((S1, S2, S3), sentinel(A, epoch=0))
    assert ask(router, net) == [7]


def test_a_sentinel_without_an_epoch_is_trusted(net: Network):
    router = watched(net)
    plain = sentinel(A)
    net.answers = {
        S1: lambda line: ResponseError("NOPERM") if line[1] == b"MASTER" else plain(line),
        A: lambda _: 7,
    }
    assert ask(router, net) == [7]


def test_no_sentinel_is_an_outage_with_its_cause(net: Network):
    router = watched(net)
    (reply,) = ask(router, net)
    assert isinstance(reply, StoreUnavailableError)
    assert isinstance(reply.__cause__, ConnectionRefusedError)
    net.answers = dict.fromkeys((S1, S2, S3), lambda _: None)
    (reply,) = ask(router, net)
    assert "no primary is watched as 'main'" in str(reply)


def test_a_change_of_primary_is_announced(net: Network):
    router = watched(net)
    changes: list[int] = []
    router.servers.changed = lambda: changes.append(1)
    net.answers = {S1: sentinel(A), A: lambda _: 7, B: lambda _: 8}
    ask(router, net)
    net.now += 2
    ask(router, net)
    assert changes == []
    net.now += 2
    net.answers[S1] = sentinel(B)
    ask(router, net)
    assert changes == [1]


# --- who is there -------------------------------------------------------------------------------


def test_a_replica_is_refused_when_connecting(net: Network):
    servers = watched(net).servers
    with pytest.raises(NotPrimaryError):
        servers.check_server(A, b"run_id:1\r\nrole:slave\r\n")
    with pytest.raises(NotPrimaryError):
        servers.check_server(A, b"")


def test_another_process_at_the_address_ends_the_word(net: Network):
    router = watched(net)
    net.answers = {S1: sentinel(A), A: lambda _: 7}
    ask(router, net)
    router.servers.check_server(A, b"run_id:1\r\nrole:master\r\n")
    router.servers.check_server(A, b"run_id:1\r\nrole:master\r\n")
    assert router.direct == A
    router.servers.check_server(B, b"run_id:9\r\nrole:master\r\n")
    assert router.direct == A, "that is not about the primary"
    router.servers.check_server(A, b"run_id:2\r\nrole:master\r\n")
    assert router.direct is None
    ask(router, net)
    router.servers.check_server(A, b"run_id:2\r\nrole:master\r\n")
    assert router.direct == A, "it was asked about, and is known now"


# --- a Cluster's slots --------------------------------------------------------------------------

SLOT = slot_of(b"{k}")
ALL = (0, 16383)


def test_a_slot_without_a_node_is_looked_up_again(net: Network):
    router = clustered(net, (0, SLOT - 1, A), (SLOT + 1, 16383, A))
    (reply,) = ask(router, net)
    assert isinstance(reply, StoreUnavailableError)
    net.answers[A] = net.answers[B] = net.answers[C] = node((*ALL, A), reply=7)
    assert ask(router, net) == [7]


def test_a_hole_is_asked_about_once_per_round_trip(net: Network):
    router = clustered(net, (0, SLOT - 1, A), (SLOT + 1, 16383, A))
    ask(router, net)
    net.asked.clear()
    ask(router, net, *[CALL] * 50)
    assert net.asked == [(A, b"CLUSTER"), (B, b"CLUSTER"), (C, b"CLUSTER")]


def test_walks_over_all_nodes_look_for_a_hole_too(net: Network):
    router = clustered(net, (0, 100, A))
    ask(router, net, PlainCommand((b"SCAN",), node=0))
    for address in (A, B, C):
        net.answers[address] = node((0, 100, A), (101, 16383, B), reply=7)
    assert ask(router, net, PlainCommand((b"SCAN",), node=1)) == [7]
    assert ask(router, net, PlainCommand((b"SCAN",), node=2)) == [None]


def test_a_node_that_was_taken_out_does_not_empty_the_map(net: Network):
    router = clustered(net)
    net.answers = {A: node(reply=7), B: node((*ALL, B), reply=8), C: silent}
    assert ask(router, net) == [8]


@pytest.mark.parametrize("trouble", [silent, cut, lambda _: ClusterDownError("down")])
def test_an_error_makes_the_store_reload_the_slots_of_a_cluster(net: Network, trouble: Any):
    router = clustered(net, (*ALL, A))
    ask(router, net)
    net.answers = {A: trouble, B: node((*ALL, B), reply=8), C: node((*ALL, B))}
    (first,) = ask(router, net)
    assert first == 8 or isinstance(first, StoreUnavailableError)
    assert ask(router, net) == [8]


def test_a_moved_slot_is_followed_and_remembered(net: Network):
    router = clustered(net, (*ALL, A))
    ask(router, net)
    moved = MovedError(f"{SLOT} b:6379")
    net.answers = {A: node((*ALL, B), reply=moved), B: node((*ALL, B), reply=8)}
    assert ask(router, net) == [8]
    net.asked.clear()
    assert ask(router, net) == [8]
    assert net.asked == [(B, b"EVALSHA")]


def test_a_slot_on_its_way_is_asked_for_where_it_goes(net: Network):
    router = clustered(net, (*ALL, A))
    asks = AskError(f"{SLOT} b:6379")
    net.answers = {A: node((*ALL, A), reply=asks), B: node((*ALL, A), reply=8)}
    assert ask(router, net) == [8]
    assert net.asked[-2:] == [(B, b"ASKING"), (B, b"EVALSHA")]


def test_a_node_that_was_silent_and_replaced_does_not_count(net: Network):
    router = clustered(net, (*ALL, A))
    ask(router, net)

    def wakes() -> int:
        net.now += 20
        return 7

    net.answers = {
        A: node((*ALL, A), reply=wakes),
        B: node((*ALL, B), reply=8),
        C: node((*ALL, B)),
    }
    assert ask(router, net) == [8]
    changed: list[int] = []
    router.servers.changed = lambda: changed.append(1)
    net.answers = {A: silent, B: silent, C: node((*ALL, C), reply=9)}
    ask(router, net)
    assert ask(router, net) == [9]
    assert changed == [1]


def searched(router: Router, net: Network, between: Callable[[], object] = bool) -> int:
    """Count all records. `between`: what happens after each round trip of the search."""

    def execute(commands: Any) -> list[Any]:
        replies = drive(router.run(commands), net.fly)
        between()
        return replies

    return drive(RedisPrograms("ts", Scripts("")).perform(Count(10)), execute)


def scanned(line: tuple[Any, ...]) -> Any:
    """A server without records, which is read in two steps."""
    return [b"5" if line[1] == b"0" else b"0", []]


def test_a_search_does_not_go_on_at_another_server(net: Network):
    """Each server has its own order of keys: records would be left out, and a follower would not copy them."""
    router = watched(net)

    def fail_over() -> None:
        net.now += 2
        net.answers |= dict.fromkeys((S1, S2, S3), sentinel(B, epoch=1))

    net.answers |= {A: scanned, B: scanned} | dict.fromkeys((S1, S2, S3), sentinel(A))
    assert searched(router, net) == 0
    with pytest.raises(StoreUnavailableError, match="another server took over during the search"):
        searched(router, net, fail_over)
    assert net.count(B) == 0
    assert searched(router, net) == 0


def test_a_search_ends_if_a_node_is_not_there_any_more(net: Network):
    router = clustered(net, (0, 99, A), (100, 16383, B))

    def shrink() -> None:
        router.servers._slots = [A] * 16384  # type: ignore[attr-defined]

    for address in (A, B):
        slots = net.answers[address]
        net.answers[address] = lambda line, slots=slots: (
            slots(line) if line[0] == b"CLUSTER" else scanned(line)
        )
    assert searched(router, net) == 0
    with pytest.raises(StoreUnavailableError, match="another server took over during the search"):
        searched(router, net, shrink)


@pytest.mark.parametrize("cursor, counts", [(b"0", True), (b"5", False)])
def test_a_search_that_lost_its_connection_does_not_go_on(
    net: Network, cursor: bytes, counts: bool
):
    """What answers at this address now may be another server. Before the first reply that does no harm."""
    router = watched(net)
    lost: list[bytes] = []

    def cut_once(line: tuple[Any, ...]) -> Any:
        if line[1] == cursor and not lost:
            lost.append(cursor)
            raise ConnectionResetError
        return scanned(line)

    net.answers |= {A: cut_once} | dict.fromkeys((S1, S2, S3), sentinel(A))
    if counts:
        assert searched(router, net) == 0
    else:
        with pytest.raises(StoreUnavailableError):
            searched(router, net)


def test_a_script_that_is_not_there_is_loaded(net: Network):
    router = clustered(net, (*ALL, A))
    loaded: list[Any] = []

    def answer(line: tuple[Any, ...]) -> Any:
        if line[0] == b"SCRIPT":
            loaded.append(line[2])
        elif line[0] == b"EVALSHA":
            return 7 if loaded else NoScriptError("x")
        return [[0, 16383, [b"a", 6379, b"id"]]]

    net.answers = {A: answer}
    assert ask(router, net, CALL, CALL) == [7, 7]
    assert loaded == [READ.text]


# --- errors in our words ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error, kind",
    [
        (NoPermissionError("this user has no permissions to run the 'get' command"), ConfigurationError),
        (ResponseError("ERR ACL failure in script: User app has no permissions to run the 'set' command "
                       "script: 1f, on @user_script:12."), ConfigurationError),
        (ResponseError("The user executing the script can't run this command or subcommand script: 1f, on @user_script:5."), ConfigurationError),
        (ResponseError("NOPERM No permissions to access a key script: 1f, on @user_script:1."), ConfigurationError),
        (ResponseError("OOM command not allowed script: 1f, on @user_script:1."), StoreUnavailableError),
        (ResponseError("READONLY You can't write against a read only replica. script: 1f, on @user_script:1."), StoreUnavailableError),
        (ResponseError("NOREPLICAS Not enough good replicas to write."), StoreUnavailableError),
        (ResponseError("MISCONF Redis is configured to save RDB snapshots script: 1f, on @user_script:1."), StoreUnavailableError),
        (ResponseError("TRYAGAIN Multiple keys request during rehashing of slot"), MigratingError),
        (ResponseError("ERR user_script:9: bad argument #2 to 'unpack' (data string too short) script: 1f, "
                       "on @user_script:9."), CorruptRecordError),
        (ResponseError("WRONGTYPE Operation against a key script: 1f, on @user_script:1."), CorruptRecordError),
        (ResponseError("CORRUPT no such state"), CorruptRecordError),
        (ResponseError("ERR This instance has cluster support disabled"), ConfigurationError),
        (TimeoutError("late"), StoreUnavailableError),
        (ResponseError("unknown command 'EVALSHA', with args beginning with: '14e6' '1' 'ts:{.\x1b[2J"), ConfigurationError),
        (ResponseError("ERR unknown subcommand 'LOAD'. Try SCRIPT HELP."), ConfigurationError),
        (ResponseError("Unknown Redis command called from script script: 1f, on @user_script:5."), ConfigurationError),
        (ResponseError("Unknown command called from script script: on @user_script:5."), ConfigurationError),
    ],
)  # fmt: skip
def test_driver_errors_become_ours(error: Exception, kind: type[Exception]):
    ours = explain(error, "redis://x")
    assert type(ours) is kind
    assert str(ours).isprintable()
    assert ours.__cause__ is error


def test_a_single_server_is_no_cluster(valkey: Any):
    url = f"redis+cluster://127.0.0.1:{valkey.port}"
    with pytest.raises(ConfigurationError, match=r"is not a Cluster.*write redis://"):
        Receiver.open(url)


async def test_nor_for_the_async_store(valkey: Any):
    with pytest.raises(ConfigurationError, match=r"is not a Cluster.*write redis://"):
        async with AsyncReceiver.open(f"redis+cluster://127.0.0.1:{valkey.port}"):
            raise AssertionError("it was opened")
