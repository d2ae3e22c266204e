"""The bench of the receiver's tests, in all its forms."""

from tests.receiver.conftest import bench

__all__ = ["bench"]
