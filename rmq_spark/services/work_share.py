"""Sharing work on a log that leaves no record of its own: who rolls it, and who expires its old segments."""

from __future__ import annotations

from rmq_spark.errors import OutcomeUnknownError
from rmq_spark.log.commit_log import CommitLog
from rmq_spark.log.request import Decision
from rmq_spark.log.state import LogState
from rmq_spark.rules import service_lease
from rmq_spark.rules.service_lease import ServiceLeases


def is_my_turn(log: CommitLog, service: str, holder: str) -> bool:
    """Whether a copy should do work that there is now; it holds the lease then, so the others leave it alone.

    Two copies that both work are right, just wasteful. A copy that dies is replaced when its lease has ended. Ask only
    when there is work: the answer may cost a record in the log.

    Raises:
        as `CommitLog.decide`.
    """

    def ask(state: LogState) -> Decision[bool]:
        if not service_lease.is_mine(state, service, holder, state.now_ms, 0):
            return Decision(False)
        return Decision(True, records=service_lease.renewal(state, service, holder))

    log.use(ServiceLeases)
    # A look costs nothing, and most copies see here that another one is at it.
    if not log.look(lambda view: _may_be_mine(view.state, service, holder, log.clock.now_ms())):
        return False
    try:
        return log.decide(ask).answer
    except OutcomeUnknownError:
        return False  # the next look tells


def _may_be_mine(state: LogState, service: str, holder: str, now_ms: int) -> bool:
    return service_lease.is_mine(state, service, holder, max(state.store_ms, now_ms), 0)
