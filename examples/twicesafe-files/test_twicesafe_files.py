"""The complete test file of a store: how to open it, and how to damage a record."""

from __future__ import annotations

from twicesafe_files import AsyncFilesStore, FilesStore

from twicesafe.testing import Place, StoreConformance, StoreModel, StoreUnderTest


class Files(StoreUnderTest):
    def open_store(self, place: Place) -> FilesStore:
        return FilesStore(place.folder / "keys", now=place.clock)

    def open_async_store(self, place: Place) -> AsyncFilesStore:
        return AsyncFilesStore(lambda: self.open_store(place), "files:///keys")

    def corrupt(self, place: Place, id: bytes) -> None:  # noqa: A002
        (place.folder / "keys" / id.hex()).write_bytes(b"\x81\xa3row")


class TestFiles(Files, StoreConformance):
    pass


class FilesModel(Files, StoreModel):
    pass


TestFilesModel = FilesModel.TestCase
