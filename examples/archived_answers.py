"""Old answers leave the store for a directory. They are found there, and a late duplicate does not run."""

from twicesafe import Receiver
from twicesafe.archive import Archive
from twicesafe.errors import ResultUnavailableError

with Receiver.open("sqlite:///payments.db") as receiver:
    for number in range(3):
        receiver.process(f"tx-{number}", lambda number=number: f"receipt {number}")
    report = receiver.archive("answers", older_than=0)
    print(report.archived, "answers archived;", "now in the store:", receiver.stats().by_state)

    found = Archive.open("answers").find(receiver.key("tx-1"))
    assert found is not None
    print("found:", found.answer(), "in", found.file)
    try:
        receiver.process("tx-1", lambda: "a second receipt")
    except ResultUnavailableError as error:
        print("a late duplicate:", error)
