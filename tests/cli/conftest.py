from tests.cli.line import line, receiver

__all__ = ["line", "receiver"]
