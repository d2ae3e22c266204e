"""The proxy's log: text, or one JSON object per line; the level is a setting."""

from __future__ import annotations

import json
import logging

__all__ = ["set_up"]


class JsonLines(logging.Formatter):
    """Time, process, level, logger and message; then the fields of a structured line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "process": record.process,
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        structured = getattr(record, "twicesafe", None)
        if isinstance(structured, dict):
            fields |= structured
        else:
            fields["message"] = record.getMessage()
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


def _is_news(record: logging.LogRecord) -> bool:
    """False for uvicorn's error about a response that was cut: the proxy has said why, and of which request."""
    return record.msg != "ASGI callable returned without completing response."


def set_up(level: str, form: str) -> None:
    """Of this process."""
    handler = logging.StreamHandler()
    handler.setFormatter(
        JsonLines()
        if form == "json"
        else logging.Formatter("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s")
    )
    logging.basicConfig(level=level.upper(), handlers=[handler])
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_is_news)
