"""What writers announce to each other is landed by whoever has the turn, disturbs nobody, and does not stay."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from faulty import BROKER, ROOT, Wrapped, ids, message, open_log

from rmq_spark.clock import ManualClock, SystemClock
from rmq_spark.errors import CorruptDataError, InvalidRequestError, OutcomeUnknownError
from rmq_spark.log import file_layout, state
from rmq_spark.log.file_encoder import Encoded, one_block
from rmq_spark.log.file_format import FileMeta
from rmq_spark.log.file_reader import read_meta
from rmq_spark.log.message_batch import MessageBatch
from rmq_spark.log.offers import SWEPT_MS, announce, list_announced
from rmq_spark.log.pace import RIVALS_REMEMBERED
from rmq_spark.log.request import Offer, Request
from rmq_spark.log.roll import roll
from rmq_spark.log.small_batch import to_message
from rmq_spark.log.state import HELPED_MIN, HelpedRows, LogState, helped_rows
from rmq_spark.log.verify import verify
from rmq_spark.storage import paths
from rmq_spark.storage.local import LocalStorage
from rmq_spark.storage.memory import MemoryStorage


def test_whoever_rolls_deletes_announcements_that_nobody_may_land_any_more() -> None:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    with open_log(storage, clock=clock) as log:
        log.append(message("a"))
        for _ in range(2):
            assert announce(storage, ROOT, message("dead").rows or [], Offer(clock.token(), clock.now_ms()))
            clock.advance(SWEPT_MS / 1000)
        storage.create_if_absent(f"{paths.announced(ROOT)}/foreign", [b"x"])
        clock.advance(0.001)
        assert announce(storage, ROOT, message("young").rows or [], Offer(clock.token(), clock.now_ms()))
        roll(log, min_commits=100)
        assert len(list(storage.list(paths.announced(ROOT)))) == 2, "the young one, and what is not the log's"
        assert ids(log) == ["a"]
    assert verify(storage, ROOT, BROKER).ok


def test_an_announcement_of_another_version_is_left_to_its_owner(monkeypatch: Any) -> None:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    with monkeypatch.context() as other:
        other.setattr(file_layout, "VERSION", 3)
        other.setitem(file_layout.SCHEMAS, 3, file_layout.SCHEMAS[2])
        assert announce(storage, ROOT, message("theirs").rows or [], Offer(clock.token(), clock.now_ms()))
    with open_log(storage, clock=clock) as log:
        log.append(message("a"))
        assert ids(log) == ["a"]


def test_an_offer_whose_outcome_is_not_known_is_not_forgotten_when_a_signal_handler_raises(monkeypatch: Any) -> None:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    log, other = open_log(storage, clock=clock), open_log(storage, clock=clock)
    batch, offer = message("mine"), Offer(clock.token(), clock.now_ms())
    log._appender._offers._open.append(offer)
    log._note(Request(batch, offer=offer))  # as after an append that was given up
    assert announce(storage, ROOT, batch.rows or [], offer)
    other.append(message("theirs"))
    with monkeypatch.context() as patched:

        def handler() -> None:
            raise TimeoutError("raised by a handler")

        patched.setattr(log._view, "refresh", handler)
        with pytest.raises(TimeoutError):
            log.append(batch)
    assert log.append(batch).repeated
    assert sorted(ids(log)) == ["mine", "theirs"]


def test_a_group_with_a_state_message_that_is_refused_lands_the_others_after_a_lost_race() -> None:
    weak = Wrapped(MemoryStorage())
    log, rival = open_log(weak), open_log(weak)

    def win(path: str) -> None:
        weak.before_create = None
        rival.append(message("rival"))

    weak.before_create = win
    refused = Request(message("bad", topic="rmq_sys_collect"))
    good = Request(MessageBatch.merge([message("z", topic="z"), message("a", topic="a")]))
    log._commit_group([refused, good])
    assert isinstance(refused.error, InvalidRequestError)
    assert good.settled
    assert sorted(ids(log)) == ["a", "rival", "z"]


def test_a_writer_that_slept_until_its_landing_was_forgotten_does_not_land_again() -> None:
    clock = ManualClock()
    weak = Wrapped(MemoryStorage(clock=clock))
    log, rival = open_log(weak, clock=clock, append_timeout_ms=60_000), open_log(weak.inner, clock=clock)
    batch = message("mine")

    def win(path: str) -> None:
        weak.before_create = None
        rival.append(message("first"))

    def land_and_forget(path: str) -> None:
        if "/announced/" in path:
            weak.after_create = None
            rival.append(message("second"))
            for name in ("third", "fourth"):
                clock.advance(state.HELPED_REMEMBERED_MS / 1000 + 1)
                other = Offer(clock.token(), clock.now_ms())
                assert announce(weak.inner, ROOT, message(f"other {name}").rows or [], other)
                rival.append(message(name))
            roll(rival, min_commits=1)

    weak.before_create, weak.after_create = win, land_and_forget
    for _ in range(3):
        with pytest.raises(OutcomeUnknownError):
            log.append(batch)
    assert ids(log).count("mine") == 1


@pytest.mark.parametrize("rolled", [False, True])
def test_who_was_helped_is_told_the_offsets_of_each_message(rolled: bool) -> None:
    clock = ManualClock()
    weak = Wrapped(MemoryStorage(clock=clock))
    log, rival = open_log(weak, clock=clock), open_log(weak.inner, clock=clock, delete_grace_ms=0)

    def win(path: str) -> None:
        weak.before_create = None
        rival.append(message("first", topic="z"))

    def help_out(path: str) -> None:
        if "/announced/" in path:
            weak.after_create = None
            rival.append(MessageBatch.merge([message("y", topic="z"), message("b", topic="b")]))
            if rolled:  # then the commit is gone, and only the state tells
                roll(rival, min_commits=1)

    weak.before_create, weak.after_create = win, help_out
    mine = [message("z1", topic="z"), message("a", topic="a"), message("z2", topic="z")]
    result = log.append(MessageBatch.merge(mine))
    assert result.queue_offsets is not None
    assert result.commit_offsets is not None
    rows = {row["msgId"]: row for batch in log.scan() for row in batch.to_pylist()}
    told = [(rows[name]["queueOffset"], rows[name]["commitOffset"]) for name in ("z1", "a", "z2")]
    assert list(zip(result.queue_offsets.tolist(), result.commit_offsets.tolist(), strict=True)) == told
    assert [offset for offset, _ in told] == [2, 0, 3]


def test_an_offer_names_its_topics_for_writers_of_older_versions() -> None:
    storage = MemoryStorage()
    offer = Offer(ManualClock().token(), 1_000)
    rows = MessageBatch.merge([message("b", topic="b"), message("a", topic="a"), message("c", topic="b")]).rows or []
    assert announce(storage, ROOT, rows, offer)
    assert read_meta(storage, offer.path, "rows").doc["topics"] == ["a", "b"]


def test_an_offer_that_cannot_be_read_does_not_keep_others_from_being_helped() -> None:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    with open_log(storage, clock=clock) as log:
        log.append(message("first"))
        for name in ("before", "wrong", "behind"):
            rows = message(name).rows or []
            offer = Offer(clock.token(), clock.now_ms())
            if name != "wrong":
                assert announce(storage, ROOT, rows, offer)
                continue
            path = f"{paths.announced(ROOT)}/{offer.announced_ms:015d}-{offer.token}.arrow"
            doc = {"nonce": offer.token, "topics": ["t"]}
            storage.create_if_absent(path, Encoded(one_block("rows", to_message(rows), 2), doc))  # it has one row
        log.append(message("own"))
        assert sorted(ids(log)) == ["before", "behind", "first", "own"]


def test_a_commit_that_names_rows_of_an_offer_which_it_does_not_have_is_damaged() -> None:
    doc = {"kind": "commit", "rows": 2, "first": 7, "ts": 1, "helped": [["token", 1, [0, 2]]]}
    with pytest.raises(CorruptDataError, match="rows that the commit does not have"):
        helped_rows(FileMeta("commitlog/7.arrow", doc, "00", 0, 0))


def test_a_writer_that_lands_what_others_offer_goes_on_looking_for_offers() -> None:
    clock = ManualClock()
    storage = MemoryStorage(clock=clock)
    with open_log(storage, clock=clock) as log:
        for number in range(2 * RIVALS_REMEMBERED):
            assert announce(
                storage, ROOT, message(f"offered-{number}").rows or [], Offer(clock.token(), clock.now_ms())
            )
            log.append(message(f"own-{number}"))
            assert f"offered-{number}" in ids(log)


def test_who_has_offered_waits_without_polling_and_lands_its_rows_itself_when_the_turn_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = LocalStorage(str(tmp_path))
    log = open_log(storage, clock=SystemClock())
    log.append(message("first"))

    def sleep(seconds: float) -> None:
        raise AssertionError("the file system tells of new commits")

    monkeypatch.setattr(log.clock, "sleep", sleep)
    with ThreadPoolExecutor() as pool:
        with storage.turn(paths.commitlog(ROOT), 0) as held:
            assert held
            sent = pool.submit(log.append, message("mine"))
            while not list_announced(storage, ROOT):
                assert not sent.done()
        assert not sent.result().repeated
    assert ids(log) == ["first", "mine"]
    assert list_announced(storage, ROOT) == []
    log.close()


def test_a_copy_of_the_state_holds_no_announcements_that_are_forgotten_by_its_time() -> None:
    known = {"young": HelpedRows(15_000, 3, 15_000, [0]), "old": HelpedRows(1_000, 1, 1_000, [0])}
    folded = LogState()
    folded.store_ms = 20_000
    folded.helped = dict(known)
    loaded, _ = LogState.load(folded.dump())
    assert loaded.helped == {"young": known["young"]}
    assert loaded.dump()["core"] == folded.dump()["core"], "however many older ones each still knows"


def test_announcements_are_forgotten_although_one_has_a_time_far_ahead() -> None:
    known = LogState()
    for number in range(20 * HELPED_MIN):
        known.store_ms = 10 * number
        announced_ms = 10**9 if number == 0 else known.store_ms
        known._note_help({f"token-{number}": HelpedRows(announced_ms, number, known.store_ms, [0])})
    assert "token-0" in known.helped
    assert len(known.helped) <= 2 * HELPED_MIN + 2, "those of the last ten seconds, and at most as many older ones"


def test_a_writer_that_idled_through_a_roll_catches_up_although_the_next_name_was_deleted() -> None:
    storage = MemoryStorage()
    log, other = open_log(storage), open_log(storage, delete_grace_ms=0)
    log.append(message("mine"))
    other.append(message("theirs"))
    roll(other)
    other.append(message("behind"))
    assert not storage.exists(paths.commit(ROOT, log.view.state.offset)), "rolled and deleted"
    assert log._appender._catch_up()
    assert not log._appender._catch_up()
    assert log.view.state.offset == 3
