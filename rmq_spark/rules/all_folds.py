"""Every fold that this version knows, by the kind of log that it lives in.

Whoever maintains a log (rolls, expires, verifies) declares all of them: the state of a fold that is not folded cannot
be kept when the messages that made it expire.
"""

from __future__ import annotations

from typing import Final

from rmq_spark.log.fold import Fold
from rmq_spark.rules.acl import AccessControl
from rmq_spark.rules.cluster import ClusterConfig
from rmq_spark.rules.lease import TableLeases
from rmq_spark.rules.members import GroupMembers
from rmq_spark.rules.offsets import ConsumerOffsets
from rmq_spark.rules.pop import PopState
from rmq_spark.rules.queue_lease import QueueLeases
from rmq_spark.rules.service_lease import ServiceLeases
from rmq_spark.rules.timer import TimerProgress
from rmq_spark.rules.topics import GroupConfigs, TopicConfigs
from rmq_spark.rules.transaction import Transactions

NAMESERVER_FOLDS: Final[tuple[type[Fold], ...]] = (
    TopicConfigs,
    GroupConfigs,
    ClusterConfig,
    TableLeases,
    GroupMembers,
    AccessControl,
)
"""Folds of the cluster-wide log."""

BROKER_FOLDS: Final[tuple[type[Fold], ...]] = (
    ConsumerOffsets,
    PopState,
    TimerProgress,
    Transactions,
    ServiceLeases,
    QueueLeases,
)
"""Folds of a broker's log."""

ALL_FOLDS: Final = NAMESERVER_FOLDS + BROKER_FOLDS
"""All of them."""
