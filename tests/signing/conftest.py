from tests.receiver.conftest import bench

__all__ = ["bench"]
