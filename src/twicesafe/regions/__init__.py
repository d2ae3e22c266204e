"""Regions: copies of records in another store, and a rule for keys whose outcome the new region cannot know.

    Regions, AsyncRegions       receivers that start work only in the region that serves a key;
                                failing over, switching, settling
    Follower, AsyncFollower     copies the records of one store to another, again and again
    Epoch, RegionStatus         who serves the keys of a home, since when, and what is in doubt
    Copied                      what one pass of a follower did
    sent_at_of_uuid7            when a message was sent, if its key is a UUIDv7

docs/how-to/regions.md explains the rule, and what it cannot do.

    _regions        `Regions` and `AsyncRegions`; what they share is in `_base`
    _follower       `Follower` and `AsyncFollower`
    _region_store   the store of one region: every claim is checked against the register
    _late_stores    opens the stores, one of which may be lost
    _performing     performs the flows of `_core.regions`
"""

from .._core.regions.epochs import Epoch
from .._core.regions.following import Copied
from ._base import RegionStatus, sent_at_of_uuid7
from ._follower import AsyncFollower, Follower
from ._regions import AsyncRegions, Regions

__all__ = [
    "AsyncFollower",
    "AsyncRegions",
    "Copied",
    "Epoch",
    "Follower",
    "RegionStatus",
    "Regions",
    "sent_at_of_uuid7",
]
