"""Reading one option's value: booleans, numbers, sizes, durations, times, and JSON over queues.

Each function takes all options by their documented names, and the name of one, so that every error can name it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from rmq_spark.errors import InvalidRequestError
from rmq_spark.model import names
from rmq_spark.model.times import parse_instant
from rmq_spark.spark.bounds import EARLIEST, QueueKey

INT64_MAX: Final = 2**63 - 1

_NUMBER: Final = re.compile(r"\d{1,19}", re.ASCII)
_AMOUNT: Final = re.compile(r"(\d{1,19})\s*([a-z]*)", re.ASCII)
_SIZES: Final = {"": 1, "b": 1} | {
    f"{letter}{b}": 1 << 10 * power for power, letter in enumerate("kmgt", 1) for b in ("", "b")
}
_DURATIONS: Final = {"": 1, "ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_TOPIC_FORM: Final = '{"topic": {"queue": value}} or {"topic": {"broker": {"queue": value}}}'

OptionValues = Mapping[str, str]
"""Values as texts, by the documented names of their options; only those that the user has set."""


def text(options: OptionValues, name: str) -> str | None:
    """The value without blanks around it; None when absent.

    Raises:
        InvalidRequestError: it is blank.
    """
    if name not in options:
        return None
    value = options[name].strip()
    if not value:
        raise InvalidRequestError(f"option {name} is blank; give a value or leave it out")
    return value


def checked(options: OptionValues, name: str, check: Callable[[str], str]) -> str | None:
    """The value if `check` lets it pass; None when absent.

    Raises:
        InvalidRequestError: it is blank, or `check` refuses it.
    """
    value = text(options, name)
    return None if value is None else named(name, value, check)


def named(name: str, value: str, check: Callable[[str], str]) -> str:
    """`check(value)`, with the option's name in its error.

    Raises:
        InvalidRequestError: `check` refuses it.
    """
    try:
        return check(value)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"option {name}: {error.args[0]}", **error.context) from error


def boolean(options: OptionValues, name: str, default: bool) -> bool:
    """`true` or `false`, in any case.

    Raises:
        InvalidRequestError: another word.
    """
    if name not in options:
        return default
    word = options[name].strip().lower()
    if word not in ("true", "false"):
        raise InvalidRequestError(f"option {name} is true or false", value=options[name])
    return word == "true"


def choice(options: OptionValues, name: str, words: tuple[str, ...]) -> str:
    """One of `words`, in any case; the first when absent.

    Raises:
        InvalidRequestError: another word.
    """
    word = options.get(name, words[0]).strip().lower()
    if word not in words:
        raise InvalidRequestError(f"option {name} is {' or '.join(words)}", value=options[name])
    return word


def number(options: OptionValues, name: str, *, least: int = 1) -> int | None:
    """A whole number; None when absent.

    Raises:
        InvalidRequestError: not a number, or below `least`, or beyond 64 bits.
    """
    if name not in options:
        return None
    value = options[name].strip()
    if not _NUMBER.fullmatch(value) or not least <= int(value) <= INT64_MAX:
        raise InvalidRequestError(f"option {name} is a whole number of at least {least}", value=options[name])
    return int(value)


def size(options: OptionValues, name: str) -> int | None:
    """Bytes, with an optional unit k, m, g or t (powers of 1024); None when absent.

    Raises:
        InvalidRequestError: not a size, or 0.
    """
    if name not in options:
        return None
    amount = _amount(options[name], _SIZES)
    if not amount:
        raise InvalidRequestError(
            f"option {name} is a size: bytes, or with a unit as in 512k, 64m, 1g", value=options[name]
        )
    return amount


def duration_ms(options: OptionValues, name: str, default: int) -> int:
    """Milliseconds, with an optional unit ms, s, m, h or d.

    Raises:
        InvalidRequestError: not a duration.
    """
    if name not in options:
        return default
    amount = _amount(options[name], _DURATIONS)
    if amount is None:
        raise InvalidRequestError(
            f"option {name} is a duration: milliseconds, or with a unit as in 500ms, 30s, 15m", value=options[name]
        )
    return amount


def time_ms(options: OptionValues, name: str) -> int | None:
    """Milliseconds since 1970, from such a number or ISO 8601 (UTC unless it says otherwise); None when absent.

    Raises:
        InvalidRequestError: not a time.
    """
    return _moment(options[name].strip(), f"option {name}") if name in options else None


def words(options: OptionValues, name: str) -> tuple[str, ...]:
    """Words between spaces and commas, each once.

    Raises:
        InvalidRequestError: the option is set, but names none.
    """
    if name not in options:
        return ()
    distinct = tuple(dict.fromkeys(filter(None, re.split(r"[\s,]+", options[name]))))
    if not distinct:
        raise InvalidRequestError(f"option {name} is blank; give a value or leave it out")
    return distinct


def json_object(options: OptionValues, name: str) -> dict[str, Any]:
    """A JSON object; empty when absent.

    Raises:
        InvalidRequestError: not JSON, not an object, or with a name twice.
    """
    if name not in options:
        return {}

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for key, value in pairs:
            if key in made:
                raise InvalidRequestError(f"option {name} has a name twice", name=key)
            made[key] = value
        return made

    try:
        value = json.loads(options[name], object_pairs_hook=once)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InvalidRequestError(f"option {name} is not JSON", value=_cut(options[name]), reason=str(error)) from error
    if not isinstance(value, dict):
        raise InvalidRequestError(f"option {name} is a JSON object", value=_cut(options[name]))
    return value


def assigned_queues(options: OptionValues, name: str) -> dict[tuple[str, str | None], tuple[int, ...]]:
    """Queue numbers from `{"topic": [0, 1]}` or `{"topic": {"broker": [0, 1]}}`.

    Raises:
        InvalidRequestError: another form, an illegal name or number, or no queue at all.
    """
    assigned: dict[tuple[str, str | None], tuple[int, ...]] = {}
    for topic, part in json_object(options, name).items():
        named(name, topic, names.check_topic)
        by_broker: Mapping[str | None, Any] = part if isinstance(part, dict) else {None: part}
        for broker, queues in by_broker.items():
            if broker is not None:
                named(name, broker, names.check_broker)
            if not isinstance(queues, list) or not queues:
                raise InvalidRequestError(
                    f'option {name} is {{"topic": [0, 1]}} or {{"topic": {{"broker": [0, 1]}}}}',
                    topic=topic,
                    value=_cut(str(queues)),
                )
            assigned[topic, broker] = tuple(sorted({_queue_id(name, queue) for queue in queues}))
    if not assigned:
        raise InvalidRequestError(f"option {name} names no queue", value=_cut(options[name]))
    return assigned


def queue_offsets(options: OptionValues, name: str) -> dict[QueueKey, int]:
    """Offsets per queue, -1 and -2 included.

    Raises:
        InvalidRequestError: neither a word nor one of the two forms; an illegal name or number.
    """
    if not options[name].lstrip().startswith("{"):
        raise InvalidRequestError(
            f"option {name} is earliest, latest, group, or {_TOPIC_FORM}", value=_cut(options[name])
        )
    offsets: dict[QueueKey, int] = {}
    for key, value in _queue_values(name, json_object(options, name)):
        if not _is_whole(value) or not EARLIEST <= value <= INT64_MAX:
            raise InvalidRequestError(
                f"option {name}: an offset is a whole number, or -1 (latest) or -2 (earliest)", queue=key, value=value
            )
        offsets[key] = value
    if not offsets:
        raise InvalidRequestError(f"option {name} names no queue", value=_cut(options[name]))
    return offsets


def queue_times(options: OptionValues, name: str) -> dict[QueueKey, int] | None:
    """Times per queue, as numbers or texts; None when absent.

    Raises:
        InvalidRequestError: none of the two forms; an illegal name, number or time.
    """
    if name not in options:
        return None
    times: dict[QueueKey, int] = {}
    for key, value in _queue_values(name, json_object(options, name)):
        if isinstance(value, str) or (_is_whole(value) and value >= 0):
            times[key] = _moment(str(value), f"option {name}")
        else:
            raise InvalidRequestError(f"option {name}: not a time", queue=key, value=_cut(str(value)))
    if not times:
        raise InvalidRequestError(f"option {name} names no queue", value=_cut(options[name]))
    return times


def _queue_values(name: str, value: dict[str, Any]) -> Iterator[tuple[QueueKey, Any]]:
    for topic, part in value.items():
        named(name, topic, names.check_topic)
        if not isinstance(part, dict):
            raise InvalidRequestError(f"option {name} is {_TOPIC_FORM}", topic=topic, value=_cut(str(part)))
        for first, inner in part.items():
            if isinstance(inner, dict):
                broker = named(name, first, names.check_broker)
                for queue, leaf in inner.items():
                    yield (topic, broker, _queue_id(name, queue)), leaf
            else:
                yield (topic, None, _queue_id(name, first)), inner


def _queue_id(name: str, value: Any) -> int:
    number = int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value
    if not _is_whole(number) or not 0 <= number < names.QUEUES_MAX:
        raise InvalidRequestError(f"option {name}: a queue id is a number from 0 to 65535", value=_cut(str(value)))
    return int(number)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _moment(value: str, option: str) -> int:
    # Neither "now" nor "5m": which moment that is depends on who asks when, and a plan must not.
    return parse_instant(value, option)


def _amount(value: str, units: Mapping[str, int]) -> int | None:
    match = _AMOUNT.fullmatch(value.strip().lower())
    if match is None or match[2] not in units:
        return None
    amount = int(match[1]) * units[match[2]]
    return amount if amount <= INT64_MAX else None


def _cut(value: str) -> str:
    return value if len(value) <= 80 else f"{value[:77]}..."
