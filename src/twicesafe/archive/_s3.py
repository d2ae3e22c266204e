"""An archive in an S3 bucket, or in one of a server that speaks S3. A put object is whole, or not there.

s3://bucket/prefix?region=eu-central-1          AWS, with the credentials that boto3 finds
s3://bucket?endpoint=https://minio.example      another server
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from .._values.drivers import driver
from .._values.keys import uuid7
from .._values.settings import expect, refuse_unknown
from ..errors import ConfigurationError
from ._places import failed

__all__ = ["Bucket"]


class Bucket:
    """It needs the rights to put, get and list objects; never to delete."""

    def __init__(self, url: str) -> None:
        with driver("boto3", "s3"):
            import boto3
            from botocore.exceptions import BotoCoreError, ClientError
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query))
        refuse_unknown(options, ("region", "endpoint"), "setting of an s3:// archive")
        expect(parts.netloc, "archive", url, "name the bucket: s3://bucket/prefix")
        self._bucket = parts.netloc
        prefix = parts.path.strip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._errors = (BotoCoreError, ClientError)
        try:
            self._client: Any = boto3.session.Session().client(
                "s3",
                region_name=options.get("region"),
                endpoint_url=options.get("endpoint"),
            )
        except (BotoCoreError, ValueError) as error:
            raise ConfigurationError(f"boto3 refused a setting: {error}") from error

    def write(self, folder: str, content: bytes) -> None:
        name = f"{self._prefix}{folder}/{uuid7()}.jsonl"
        try:
            self._client.put_object(
                Bucket=self._bucket, Key=name, Body=content, ContentType="application/x-ndjson"
            )
        except self._errors as error:
            raise failed("written", error) from error

    def names(self, folder: str) -> Iterator[str]:
        before = f"{self._prefix}{folder}/" if folder else f"{self._prefix}day="
        pages = self._client.get_paginator("list_objects_v2")
        try:
            for page in pages.paginate(Bucket=self._bucket, Prefix=before):
                for found in page.get("Contents", ()):
                    if found["Key"].endswith(".jsonl"):
                        yield found["Key"].removeprefix(self._prefix)
        except self._errors as error:
            raise failed("listed", error) from error

    def read(self, name: str) -> bytes:
        try:
            body = self._client.get_object(Bucket=self._bucket, Key=self._prefix + name)["Body"]
            return bytes(body.read())
        except self._errors as error:
            raise failed("read", error) from error
