"""Settings of consumer groups (facts 3.4): what they are, their defaults, and changing them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from rmq_spark.errors import InvalidRequestError
from rmq_spark.log.request import Decision, Rule
from rmq_spark.log.state import LogState
from rmq_spark.rules import retry
from rmq_spark.rules.topics import GroupConfigs


class RetryPolicyName(StrEnum):
    """RocketMQ's `groupRetryPolicy` types."""

    CUSTOMIZED = "CUSTOMIZED"
    """The delay levels: 10 s, 30 s, 1 min and so on."""
    EXPONENTIAL = "EXPONENTIAL"
    """5 s, 10 s, 20 s and so on, up to 2 hours."""


POLICIES: Final[Mapping[RetryPolicyName, retry.RetryPolicy]] = {
    RetryPolicyName.CUSTOMIZED: retry.DEFAULT_POLICY,
    RetryPolicyName.EXPONENTIAL: retry.ExponentialPolicy(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Settings of a group; a group that has none has RocketMQ's defaults."""

    orderly: bool = False
    """`consumeMessageOrderly`: messages of a queue are received in order (FIFO)."""
    retry_max_times: int = retry.RETRY_MAX_TIMES
    """`retryMaxTimes`: a message is delivered once more than this, then goes to the dead-letter topic."""
    consume_enabled: bool = True
    """`consumeEnable`: without it the group's consumers get nothing."""
    retry_policy: RetryPolicyName = RetryPolicyName.CUSTOMIZED
    """How long a failed message waits."""

    @property
    def policy(self) -> retry.RetryPolicy:
        """The retry policy itself."""
        return POLICIES[self.retry_policy]


def settings_of(config: Mapping[str, Any]) -> GroupSettings:
    """The settings that a record of `GroupConfigs` describes; an empty one has the defaults."""
    return GroupSettings(
        orderly=bool(config.get("consumeMessageOrderly", False)),
        retry_max_times=int(config.get("retryMaxTimes", retry.RETRY_MAX_TIMES)),
        consume_enabled=bool(config.get("consumeEnable", True)),
        retry_policy=RetryPolicyName(config.get("groupRetryPolicy", RetryPolicyName.CUSTOMIZED)),
    )


def update(
    group: str,
    *,
    orderly: bool | None = None,
    retry_max_times: int | None = None,
    consume_enabled: bool | None = None,
    retry_policy: str | None = None,
) -> Rule[GroupSettings]:
    """Create a group or change its settings; None leaves one as it is. The answer is what they are afterwards.

    Raises:
        InvalidRequestError: a number below 0, or an unknown policy.
    """
    if retry_max_times is not None and retry_max_times < 0:
        raise InvalidRequestError("a group retries 0 times or more", group=group, retry_max_times=retry_max_times)
    if retry_policy is not None and retry_policy not in list(RetryPolicyName):
        known = [str(each) for each in RetryPolicyName]
        raise InvalidRequestError("no such retry policy", retry_policy=retry_policy, known=known)
    chosen = {
        "consumeMessageOrderly": orderly,
        "retryMaxTimes": retry_max_times,
        "consumeEnable": consume_enabled,
        "groupRetryPolicy": None if retry_policy is None else str(retry_policy),
    }
    changed = {name: value for name, value in chosen.items() if value is not None}

    def rule(state: LogState) -> Decision[GroupSettings]:
        known = state.fold(GroupConfigs).configs.get(group)
        before = {name: value for name, value in (known or {"group": group}).items() if name != "updatedAt"}
        after = {**before, **changed}
        if known is not None and after == before:
            return Decision(settings_of(after))
        return Decision(settings_of(after), records=[(GroupConfigs.topics[0], after)])

    return rule
