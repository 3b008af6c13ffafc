"""Names of RocketMQ's system properties, and which of them a user may not set."""

from __future__ import annotations

from typing import Final

KEYS: Final = "KEYS"
"""Space-joined keys of a message; a column of its own here."""
TAGS: Final = "TAGS"
"""The one tag of a message; a column of its own here."""
UNIQ_KEY: Final = "UNIQ_KEY"
"""The id drawn by the producer; the column `msgId` here."""
SHARDING_KEY: Final = "__SHARDINGKEY"
"""Messages with the same value go to the same queue."""
PRIORITY: Final = "_SYS_MSG_PRIORITY_"
"""Priority of a message; the higher, the sooner it is consumed."""
WAIT: Final = "WAIT"
"""Whether the sender waits until the message is stored; absent means true."""
DELAY_LEVEL: Final = "DELAY"
"""Delay level 1 to 18."""
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
"""Absolute delivery time, milliseconds."""
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
"""Delay in seconds; comes before the one in milliseconds."""
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
"""Delay in milliseconds; comes before the absolute time."""
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
"""When a parked message is due, to the millisecond (RocketMQ: to the second)."""
REAL_TOPIC: Final = "REAL_TOPIC"
"""Where a parked message goes."""
REAL_QID: Final = "REAL_QID"
"""Queue of `REAL_TOPIC`."""
TRANSACTION_PREPARED: Final = "TRAN_MSG"
"""`true` on messages of a transaction."""
PRODUCER_GROUP: Final = "PGROUP"
"""Group whose producers may be asked about the transaction."""
TRANSACTION_ID: Final = "__transactionId__"
"""Which transaction a message belongs to."""
CHECK_IMMUNITY_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
"""How long nobody asks about the transaction of a half message."""
CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
"""How often a producer was asked about a transaction that was given up."""
RETRY_TOPIC: Final = "RETRY_TOPIC"
"""Topic that a retried message was first sent to."""
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
"""Offset id of the message that was retried first."""
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
"""Topic that a dead letter was first sent to."""
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
"""Id (UNIQ_KEY) of the message that became a dead letter."""
FIRST_POP_MS: Final = "1ST_POP_TIME"
"""When a message was first received by POP."""

COLUMN_OF: Final = {TAGS: "tags", KEYS: "keys", UNIQ_KEY: "msgId"}
"""RocketMQ properties that are columns of their own in this log."""

# fmt: off
RESERVED: Final = frozenset(
    {
        "KEYS", "TAGS", "WAIT", "DELAY", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_OUT_MS",
        "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES", "TIMER_DEL_UNIQKEY", "TIMER_DELAY_LEVEL",
        "RETRY_TOPIC", "REAL_TOPIC", "REAL_QID", "TRAN_MSG", "PGROUP", "TRAN_PREPARED_QUEUE_OFFSET", "UNIQ_KEY",
        "ORIGIN_MESSAGE_ID", "RECONSUME_TIME", "MAX_RECONSUME_TIMES", "MIN_OFFSET", "MAX_OFFSET",
        "CONSUME_START_TIME", "CLUSTER", "MSG_REGION", "TRACE_ON", "INSTANCE_ID", "BORN_TIMESTAMP", "__BORNHOST",
        "POP_CK", "POP_CK_OFFSET", "1ST_POP_TIME", "INNER_MULTI_QUEUE_OFFSET", "CORRELATION_ID", "REPLY_TO_CLIENT",
        "TTL", "ARRIVE_TIME", "PUSH_REPLY_TIME", "MSG_TYPE", "DLQ_ORIGIN_TOPIC", "DLQ_ORIGIN_MESSAGE_ID", "__CRC32#",
        "_SYS_MSG_PRIORITY_",
        "DUP_INFO", "EXTEND_UNIQ_INFO", "BUYER_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG",
    }
)
# fmt: on
"""Names that `Message` refuses as user properties, as RocketMQ's `putUserProperty` does."""
