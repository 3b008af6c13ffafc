"""The names that people know from RocketMQ's `mqadmin`: each stands for a command of `rmq`, with mqadmin's letters.

What is behind a name is rewritten, and the rest (`--json`, `--store`, `--yes`) goes through as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import typer

from rmq_spark.cli.options import ConfOption, JsonOption, StoreOption, common
from rmq_spark.cli.output import Table
from rmq_spark.errors import InvalidRequestError

ARGUMENT: Final = "@"
"""The value is the command's argument."""
IGNORED: Final = ""
"""The value means nothing here: there is no nameserver address and no cluster name."""

FLAG: Final = "!"
"""The letter has no value, and means nothing here."""

Rewrite = Callable[[str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Alias:
    """What a name of `mqadmin` stands for."""

    command: tuple[str, ...]
    """The command of `rmq`."""
    letters: Mapping[str, str | Rewrite]
    """mqadmin's letter -> what becomes of its value: the argument, an option, nothing, or what a function makes."""
    fixed: tuple[str, ...] = ()
    """Options that it always has."""
    without: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Letter -> what stands for it when it is not given."""


def _attributes(text: str) -> list[str]:
    """`+message.type=FIFO` of updateTopic's `-a`."""
    options: list[str] = []
    for part in text.split(","):
        name, _, value = part.removeprefix("+").partition("=")
        if name != "message.type":
            raise InvalidRequestError("of a topic's attributes only message.type is known", attribute=part)
        options += ["--type", value]
    return options


def _flag(yes: str, no: str | None) -> Rewrite:
    def rewrite(text: str) -> list[str]:
        if text.lower() not in ("true", "false"):
            raise InvalidRequestError("give true or false", value=text)
        chosen = yes if text.lower() == "true" else no
        return [] if chosen is None else [chosen]

    return rewrite


def _one_offset(text: str) -> list[str]:
    if not text.isascii() or not text.isdigit():
        raise InvalidRequestError("an offset is a number", value=text)
    return ["--from-offset", text, "--to-offset", str(int(text) + 1)]


def _reset_time(text: str) -> list[str]:
    return ["--to-latest"] if text == "-1" else ["--to-time", text]


_GROUP: Final = {"-g": ARGUMENT}
_TOPIC: Final = {"-t": ARGUMENT}
_FORCE: Final = _flag("--force", None)

ALIASES: Final[Mapping[str, Alias]] = {
    "updateTopic": Alias(
        ("topic", "create"),
        {
            **_TOPIC,
            "-r": "--read-queues",
            "-w": "--write-queues",
            "-p": "--perm",
            "-b": "--broker",
            "-a": _attributes,
            "-o": IGNORED,
            "-u": IGNORED,
            "-s": IGNORED,
        },
        ("--update",),
    ),
    "updateTopicPerm": Alias(("topic", "update"), {**_TOPIC, "-p": "--perm", "-b": IGNORED}),
    "deleteTopic": Alias(("topic", "delete"), _TOPIC),
    "topicList": Alias(("topic", "list"), {"-c": FLAG}),
    "topicRoute": Alias(("topic", "show"), _TOPIC),
    "topicStatus": Alias(("topic", "spans"), _TOPIC),
    "updateSubGroup": Alias(
        ("group", "update"),
        {
            **_GROUP,
            "-r": "--retry-max",
            "-s": _flag("--consume", "--no-consume"),
            "-o": _flag("--orderly", "--no-orderly"),
            "-b": IGNORED,
            "-q": IGNORED,
        },
    ),
    "deleteSubGroup": Alias(("group", "delete"), {**_GROUP, "-b": IGNORED, "-r": IGNORED}),
    "consumerProgress": Alias(("group", "show"), {**_GROUP, "-t": "--topic", "-s": FLAG}),
    "consumerStatus": Alias(("group", "members"), {**_GROUP, "-i": IGNORED, "-s": FLAG}),
    "consumerConnection": Alias(("group", "members"), _GROUP),
    "resetOffsetByTime": Alias(("group", "reset"), {**_GROUP, "-t": "--topic", "-s": _reset_time, "-f": _FORCE}),
    "skipAccumulatedMessage": Alias(("group", "reset"), {**_GROUP, "-t": "--topic", "-f": _FORCE}, ("--to-latest",)),
    "cloneGroupOffset": Alias(("group", "reset"), {"-d": ARGUMENT, "-s": "--clone", "-t": "--topic", "-o": IGNORED}),
    "queryMsgById": Alias(("query",), {**_TOPIC, "-i": "--id"}),
    "queryMsgByUniqueKey": Alias(("query",), {**_TOPIC, "-i": "--id", "-g": IGNORED, "-d": IGNORED}),
    "queryMsgByKey": Alias(("query",), {**_TOPIC, "-k": "--key", "-m": "--limit", "-b": "--from", "-e": "--to"}),
    "queryMsgByOffset": Alias(("query",), {**_TOPIC, "-b": "--broker", "-i": "--queue", "-o": _one_offset}),
    "queryMsgTraceById": Alias(("trace",), {"-i": "--id", "-t": IGNORED}),
    "printMsg": Alias(("read",), {**_TOPIC, "-s": "--tags", "-b": "--from", "-e": "--to", "-d": IGNORED}),
    "sendMessage": Alias(("send",), {**_TOPIC, "-p": "--body", "-k": "--keys", "-c": "--tags", "-i": "--queue"}),
    "consumeMessage": Alias(
        ("consume",),
        {**_TOPIC, "-g": "--group", "-c": "--limit", "-s": "--from"},
        without={"-g": ("--group", "TOOLS_CONSUMER"), "-s": ("--from", "earliest")},
    ),
    "clusterList": Alias(("broker", "list"), {"-m": FLAG, "-i": IGNORED}),
    "brokerStatus": Alias(("broker", "list"), {"-b": IGNORED}),
    "wipeWritePerm": Alias(("broker", "readonly"), {"-b": ARGUMENT}),
    "addWritePerm": Alias(("broker", "readonly"), {"-b": ARGUMENT}, ("--off",)),
    "getBrokerConfig": Alias(("broker", "settings"), {"-b": IGNORED}),
    "statsAll": Alias(("stats",), {"-a": FLAG, "-t": IGNORED}, ("--once",)),
}
"""By mqadmin's name."""


def rewritten(name: str, args: Sequence[str]) -> list[str]:
    """The words of `rmq` for a command of `mqadmin`.

    Raises:
        InvalidRequestError: a letter without its value, or a value that means nothing.
    """
    alias = ALIASES[name]
    if name == "consumerProgress" and "-g" not in args:
        alias = Alias(("group", "list"), {"-t": IGNORED, "-s": FLAG})
    words: list[str] = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        becomes = IGNORED if word == "-n" else alias.letters.get(word, IGNORED if word == "-c" else None)
        if becomes is None:
            words.append(word)
            continue
        if becomes == FLAG:
            continue
        if not rest:
            raise InvalidRequestError(f"{word} needs a value", command=name)
        value = rest.pop(0)
        if callable(becomes):
            words += becomes(value)
        elif becomes == ARGUMENT:
            words.append(value)
        elif becomes != IGNORED:
            words += [becomes, value]
    missing = [word for letter, default in alias.without.items() if letter not in args for word in default]
    return [*alias.command, *words, *missing, *alias.fixed]


def mqadmin(
    ctx: typer.Context, *, store: StoreOption = None, json: JsonOption = False, conf: ConfOption = None
) -> None:
    """List the commands of RocketMQ's mqadmin that work as `rmq NAME`, and what each stands for."""
    options = common(ctx, store, json, conf)
    document = [
        {"name": name, "command": " ".join(("rmq", *alias.command, *alias.fixed)), "options": sorted(alias.letters)}
        for name, alias in sorted(ALIASES.items())
    ]
    rows = [(str(each["name"]), str(each["command"]), " ".join(each["options"])) for each in document]
    options.out.result(document, Table(("MQADMIN", "STANDS FOR", "OPTIONS"), rows))
