"""`rmq consume`: messages of a topic as a member of a consumer group; what was printed counts as consumed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from rmq_spark.cli import output
from rmq_spark.cli.options import INT64_MAX, ConfOption, JsonOption, StoreOption, common
from rmq_spark.cli.read import columns_of, show

if TYPE_CHECKING:
    from rmq_spark.cli.output import Output
    from rmq_spark.client.lite_pull_consumer import LitePullConsumer

POLL_ROWS: Final = 1_000
"""Messages that are printed and committed together."""
END_SECONDS: Final = 1.0
"""Without `--tail`: when nothing came for so long, the end is reached."""
TAIL_SECONDS: Final = 5.0


def consume(
    ctx: typer.Context,
    *,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic.")],
    group: Annotated[str, typer.Option("--group", metavar="NAME", help="The consumer group.")],
    tail: Annotated[bool, typer.Option("--tail", help="Wait for more at the end, until interrupted.")] = False,
    tags: Annotated[str | None, typer.Option("--tags", metavar="EXPR", help="With one of these: 'A || B'.")] = None,
    sql: Annotated[
        str | None, typer.Option("--sql", metavar="EXPR", help="With properties for which this is true, in SQL92.")
    ] = None,
    start: Annotated[
        str,
        typer.Option(
            "--from", "--since", metavar="WHERE", help="Where a new group starts: earliest, latest or a time."
        ),
    ] = "latest",
    limit: Annotated[int | None, typer.Option("--limit", min=1, max=INT64_MAX, help="At most so many.")] = None,
    columns: Annotated[
        str | None, typer.Option("--columns", metavar="NAMES", help="What to show, with commas between.")
    ] = None,
    store: StoreOption = None,
    json: JsonOption = False,
    conf: ConfOption = None,
) -> None:
    """Consume messages as a member of a group and print them, one a line; stop at the end, or wait with --tail."""
    from rmq_spark.client.lite_pull_consumer import LitePullConsumer
    from rmq_spark.model.times import parse_time

    options = common(ctx, store, json, conf)
    names = columns_of(columns, options.json)
    with options.open(read_only=False, services="auto" if tail else "off") as opened:
        where = start if start in ("earliest", "latest") else parse_time(start, "--from/--since", opened.clock.now_ms())
        if not options.json:
            options.out.note("\t".join(names))
        with LitePullConsumer(opened, group, consume_from=where, auto_commit=False) as consumer:
            consumer.subscribe(topic, tags=tags, sql=sql)
            try:
                _print(options.out, consumer, names, limit=limit, tail=tail)
            except KeyboardInterrupt:
                if not tail:
                    raise  # with --tail that is how it ends


def _print(out: Output, consumer: LitePullConsumer, names: tuple[str, ...], *, limit: int | None, tail: bool) -> None:
    left = limit
    while left is None or left > 0:
        rows = POLL_ROWS if left is None else min(POLL_ROWS, left)
        table = consumer.poll_table(TAIL_SECONDS if tail else END_SECONDS, max_rows=rows)
        for batch in table.to_batches():
            show(out, batch, names)
        # Only what has really left this process counts as consumed.
        output.finish()
        consumer.commit()
        if not table.num_rows and not tail:
            return
        left = None if left is None else left - table.num_rows
