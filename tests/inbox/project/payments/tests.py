"""Run by Django's test runner: atomic blocks, the ORM, threads, and what others see."""

from __future__ import annotations

import os
import threading
from typing import Any
from unittest import mock

import pytest
from django.core.management import call_command
from django.db import connection, connections, transaction
from django.test import Client, TestCase, TransactionTestCase

from tests.inbox.project.payments import handling
from tests.inbox.project.payments.models import Payment
from twicesafe import AtomicityBrokenError, StillInProgressError, UsageError
from twicesafe.encryption import HiddenKeys
from twicesafe.integrations.django_inbox import open_inbox, open_outbox
from twicesafe.integrations.django_inbox.models import Record


class InABlockOfTheTestCase(TestCase):  # type: ignore[misc]
    def setUp(self) -> None:
        self.inbox = open_inbox(consumer="billing")
        self.addCleanup(self.inbox.close)

    def test_once_by_connection_and_by_alias(self) -> None:
        with transaction.atomic():
            assert self.inbox.accept(connection, "m-1")
            Payment.objects.create(amount=5)
        with transaction.atomic():
            assert not self.inbox.accept("default", "m-1")
        assert Record.objects.count() == 1

    def test_hidden_keys(self) -> None:
        secret = {"HIDDEN": HiddenKeys.new_secret()}
        with mock.patch.dict(os.environ, secret):
            inbox = open_inbox(consumer="canary-shop", hidden_keys="env:HIDDEN")
        self.addCleanup(inbox.close)
        for is_new in (True, False):
            with transaction.atomic():
                assert inbox.accept(connection, "canary-1") is is_new
        with connection.cursor() as cursor:
            cursor.execute("SELECT * FROM twicesafe_keys")
            rows = repr(cursor.fetchall())
        assert inbox.key("canary-1").value in rows
        assert "canary" not in rows

    def test_a_block_that_fails_takes_the_record_with_it(self) -> None:
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            self.inbox.process(
                connection, "m-1", lambda: Payment.objects.create(amount=1) and 1 // 0
            )
        assert Payment.objects.count() == 0
        with transaction.atomic():
            outcome = self.inbox.process(connection, "m-1", lambda: "second")
        assert not outcome.replayed

    def test_inner_blocks_are_savepoints(self) -> None:
        def pay() -> str:
            Payment.objects.create(amount=1)
            try:
                with transaction.atomic():
                    Payment.objects.create(amount=2)
                    raise ValueError
            except ValueError:
                return "paid"
            return ""

        with transaction.atomic():
            assert self.inbox.process(connection, "m-1", pay).value == "paid"
        with transaction.atomic():
            assert self.inbox.process(connection, "m-1", pay).replayed
        assert [payment.amount for payment in Payment.objects.all()] == [1]

    def test_a_module_of_the_project_has_an_inbox_and_an_outbox(self) -> None:
        """Made when the module was loaded: before there was a test database."""
        Payment.objects.create(amount=7)  # on SQLite this connection has the one lock by now
        for _ in range(2):
            handling.receive({"id": "m-7", "amount": 8})
        assert [payment.amount for payment in Payment.objects.all()] == [7, 8]
        with connection.cursor() as cursor:
            cursor.execute("SELECT aggregatetype FROM twicesafe_outbox")
            assert list(cursor.fetchall()) == [("payments",)]

    def test_migrations_are_complete(self) -> None:
        call_command("makemigrations", "twicesafe", "--check", "--dry-run", verbosity=0)


class WithRealCommits(TransactionTestCase):  # type: ignore[misc]
    def setUp(self) -> None:
        self.inbox = open_inbox()
        self.addCleanup(self.inbox.close)
        with connection.cursor() as cursor:  # not managed, so the test case does not empty it
            cursor.execute("DELETE FROM twicesafe_keys")

    def test_a_failed_attempt_is_noted_in_the_test_database(self) -> None:
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            handling.inbox.process(connection, "m-9", lambda: 1 // 0)
        noted = handling.inbox.key("m-9").id
        handling.inbox._runtime.deferred.wait(noted, 60)
        assert [record.attempt for record in Record.objects.filter(id=noted)] == [1]

    def test_what_waits_is_counted(self) -> None:
        outbox = open_outbox()
        with transaction.atomic():
            outbox.add(connection, topic="t", body=b"")
        assert outbox.depth().pending == 1
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM twicesafe_outbox")

    def test_after_the_commit_there_is_no_transaction(self) -> None:
        """`on_commit` runs in autocommit again."""
        with pytest.raises(UsageError, match="atomic"), transaction.atomic():
            transaction.on_commit(lambda: self.inbox.accept(connection, "m-1") and None)
        assert Record.objects.count() == 0

    def test_a_request_is_a_transaction_if_django_makes_it_one(self) -> None:
        for url, status in (("/plain", 200), ("/fails", 500), ("/on-its-own", 500)):
            response = Client(raise_request_exception=False).post(url)
            assert response.status_code == status, response.content
        assert [payment.amount for payment in Payment.objects.all()] == [1]
        recorded = [
            key
            for key in ("r-1", "r-2", "r-3")
            if Record.objects.filter(id=handling.inbox.key(key).id).exists()
        ]
        assert recorded == ["r-1"]

    def test_without_a_block_it_is_refused(self) -> None:
        with pytest.raises(UsageError, match="atomic"):
            self.inbox.accept(connection, "m-1")

    def test_a_handler_that_commits_is_found_out(self) -> None:
        def commits() -> None:
            with connection.cursor() as cursor:
                cursor.execute("COMMIT")
                cursor.execute("BEGIN")

        with pytest.raises(AtomicityBrokenError), transaction.atomic():
            self.inbox.process(connection, "m-1", commits)

    def test_each_thread_has_its_own_connection_and_block(self) -> None:
        seen: list[Any] = []

        def deliver() -> None:
            try:
                for _ in range(20):
                    try:
                        with transaction.atomic():
                            seen.append(self.inbox.process("default", "m-1", self.pay))
                    except StillInProgressError:
                        continue
                    except Exception as error:
                        if "locked" not in str(error):  # SQLite: another connection is writing
                            raise
                        continue
                    return
            finally:
                connections.close_all()

        threads = [threading.Thread(target=deliver) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert Payment.objects.count() == 1
        assert len([outcome for outcome in seen if not outcome.replayed]) == 1
        assert len(seen) == 4

    @staticmethod
    def pay() -> str:
        assert connection.in_atomic_block
        Payment.objects.create(amount=1)
        return "paid"
