"""Step 1 of an append: ask each caller what it wants here, on the state as those before it will leave it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rmq_spark.errors import OutcomeUnknownError, PreconditionFailedError
from rmq_spark.log.core_folds import CORE_FOLDS, FoldList, RowFiles, SinkBatches
from rmq_spark.log.fast import json_text
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.offers import Offers
from rmq_spark.log.request import Decision, Outcome, Request
from rmq_spark.log.schema import Row
from rmq_spark.log.state import LogState
from rmq_spark.log.view import LogView
from rmq_spark.storage import paths

_CORE_NAMES: Final = frozenset(fold.name for fold in CORE_FOLDS)


class Asker:
    """Asks the requests of one handle. Not safe for use by two threads at once."""

    def __init__(self, view: LogView, handle: str, offers: Offers) -> None:
        self._view = view
        self._handle = handle
        self._offers = offers
        self._records = 0

    def ask(self, state: LogState, todo: Sequence[Request]) -> None:
        """Ask each request on the state as those before it will have left it."""
        for request in todo:
            request.admitted, request.attempt, request.refusal = None, None, None
            request.repeated, request.rows = False, 0
            try:
                self._ask_one(state, request)
            except Exception as error:  # noqa: BLE001 - a rule's own fault is its own caller's
                request.admitted, request.refusal = None, error

    def _ask_one(self, state: LogState, request: Request) -> None:
        offer = request.offer
        if offer is not None:
            # Here it has not landed, unless it is known to, or that was forgotten while we slept. Behind a commit of
            # this time an earlier one never will, unless it is young enough; this commit names the current one.
            earlier = offer is not self._offers.current
            unclear = offer.outcome is Outcome.UNCLEAR and earlier and offer.may_land(state.now_ms)
            if unclear or offer.outcome in (Outcome.LANDED, Outcome.FORGOTTEN):
                raise OutcomeUnknownError("others may have landed it; append the same batch again in a moment")
        if request.app is not None and state.fold(SinkBatches).last.get(request.app[0], -1) >= request.app[1]:
            request.repeated = True
            return
        if request.files:
            self._check_files(state.fold(RowFiles), [file.name for file in request.files])
            state.admit(None, request.app)
            request.rows = sum(file.rows for file in request.files)
            return
        parts = [request.batch] if request.batch is not None else []
        if request.rule is not None:
            decision = request.rule(state)
            request.answer, parts = decision.answer, self._decided_rows(state, decision)
        for part in parts:  # a table comes first and changes no fold: if the records are refused, nothing is left of it
            state.admit(part, request.app)
        if parts:
            request.admitted = MessageBatch.merge(parts)
            request.rows = request.admitted.num_rows

    def _decided_rows(self, state: LogState, decision: Decision[object]) -> list[MessageBatch]:
        """What a rule wants to append, in one part; in two if its messages are a table, which has no records."""
        rows = [decision.rows] if decision.rows is not None else []
        if not decision.records:
            return rows
        records = self._record_rows(state, decision.records)
        if rows and rows[0].rows is None:
            return [*rows, records]
        return [MessageBatch.merge([*rows, records])]

    def _record_rows(self, state: LogState, records: Sequence[tuple[str, Mapping[str, Any]]]) -> MessageBatch:
        """State messages; `LogState.admit` checks them by folding them."""
        prefix, now_ms = self._handle[:20].upper(), state.now_ms
        rows: list[Row] = []
        for topic, value in records:
            self._records += 1
            msg_id, body = f"{prefix}{self._records:012X}", json_text(dict(value))
            rows.append((topic, 0, msg_id, None, None, body, 0, 0, now_ms, None, 0, []))
        return MessageBatch(rows)

    def _check_files(self, known: RowFiles, files: Sequence[str]) -> None:
        if claimed := sorted(known.claimed.keys() & set(files)):
            raise PreconditionFailedError(
                "row files were collected as orphans before the commit; write them again", files=claimed[:5]
            )
        if taken := sorted(known.referenced.keys() & set(files)):
            raise PreconditionFailedError("row files are in the log already", files=taken[:5])
        # A claim that was signed off is forgotten, but its files were deleted before: this look, made after the state
        # was folded up to here, sees that. A claim that comes later finds this commit and gives way.
        place = self._view.root
        if gone := [name for name in files if not self._view.storage.exists(paths.data_file(place, name))]:
            raise PreconditionFailedError("row files are gone; write them again", files=gone[:5])

    def new_folds(self, state: LogState) -> MessageBatch | None:
        """Records that name the folds whose first records are on trial."""
        listed = state.fold(FoldList).topics_of
        new = sorted(state.touched.keys() - listed.keys() - _CORE_NAMES)
        if not new:
            return None
        topic = FoldList.topics[0]
        return self._record_rows(
            state, [(topic, {"fold": name, "topics": list(state.folds[name].topics)}) for name in new]
        )
