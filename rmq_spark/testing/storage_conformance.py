"""What every storage backend must do, as tests that a new backend inherits.

Subclass `StorageConformance` in a test module as `TestMyBackend`, and give it two fixtures: `storage` (an
empty store) and `second_handle` (another handle on the same one, with connections of its own).
"""

from __future__ import annotations

import itertools
import pickle
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest

from rmq_spark.clock import SystemClock
from rmq_spark.errors import CorruptDataError, ExistsError, InvalidRequestError, NotFoundError
from rmq_spark.storage.base import Bytes, Storage
from rmq_spark.storage.open import probe


class StorageConformance:
    """The contract of `Storage`, one promise per test."""

    awkward_names: ClassVar[Sequence[str]] = (
        "ünïcødé €.arrow",
        "a b+c=d&e.arrow",
        "100%25.arrow",
        "日本語.arrow",
        "quote'(1)!.arrow",
        "x" * 200,
    )
    """Names the backend must take as they are."""
    race_names: ClassVar[int] = 50
    """How many names the racing writers fight for."""

    def test_round_trip(self, storage: Storage, second_handle: Storage) -> None:
        storage.create_if_absent("a/b/one", [b"hello"])
        assert storage.read("a/b/one") == b"hello"
        assert second_handle.read("a/b/one") == b"hello"

    def test_a_file_in_the_root(self, storage: Storage) -> None:
        storage.create_if_absent("store.json", [b"{}"])
        assert storage.read("store.json") == b"{}"
        assert [info.name for info in storage.list("")] == ["store.json"]

    def test_an_empty_file(self, storage: Storage) -> None:
        storage.create_if_absent("d/empty", [])
        assert storage.read("d/empty") == b""
        assert storage.read_tail("d/empty", 10) == (b"", 0)
        assert storage.read_range("d/empty", 0, 0) == b""
        assert [info.size for info in storage.list("d")] == [0]

    def test_five_megabytes(self, storage: Storage) -> None:
        content = bytes(range(256)) * 20_480
        storage.create_if_absent("d/big", [content])
        assert storage.read("d/big") == content
        assert storage.read_range("d/big", 4_000_003, 700) == content[4_000_003:4_000_703]
        assert [info.size for info in storage.list("d")] == [len(content)]

    def test_pieces_of_every_kind_are_joined_in_order(self, storage: Storage) -> None:
        wide = memoryview(bytes(range(16))).cast("I")
        pieces: list[Bytes] = [b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3], b"", wide]
        storage.create_if_absent("d/pieces", pieces)
        assert storage.read("d/pieces") == b"abcdef" + bytes(range(16))

    def test_thousands_of_pieces(self, storage: Storage) -> None:
        pieces = [b"%06d" % number for number in range(5_000)]
        storage.create_if_absent("d/many", pieces)
        assert storage.read("d/many") == b"".join(pieces)

    def test_not_durable_then_sync(self, storage: Storage) -> None:
        storage.create_if_absent("d/s1", [b"1"], durable=False)
        storage.create_if_absent("e/s2", [b"2"], durable=False)
        storage.sync(["d/s1", "e/s2"])
        assert storage.read("d/s1") + storage.read("e/s2") == b"12"

    @pytest.mark.parametrize(("start", "length"), [(0, 10), (0, 3), (7, 3), (4, 1), (10, 0), (0, 0)])
    def test_ranges(self, storage: Storage, start: int, length: int) -> None:
        storage.create_if_absent("d/r", [b"0123456789"])
        assert storage.read_range("d/r", start, length) == b"0123456789"[start : start + length]

    @pytest.mark.parametrize(("start", "length"), [(0, 11), (8, 3), (10, 1), (50, 5), (11, 0)])
    def test_a_range_beyond_the_end_is_corrupt(self, storage: Storage, start: int, length: int) -> None:
        storage.create_if_absent("d/r", [b"0123456789"])
        with pytest.raises(CorruptDataError):
            storage.read_range("d/r", start, length)

    @pytest.mark.parametrize(("start", "length"), [(-1, 1), (0, -1)])
    def test_a_negative_range_is_refused(self, storage: Storage, start: int, length: int) -> None:
        storage.create_if_absent("d/r", [b"0123456789"])
        with pytest.raises(InvalidRequestError):
            storage.read_range("d/r", start, length)

    @pytest.mark.parametrize(
        "ranges",
        [[], [(3, 4)], [(0, 1), (9, 1)], [(5, 5), (0, 5), (2, 6)], [(4, 2), (4, 2)], [(0, 3), (10, 0), (7, 3)]],
    )
    def test_several_ranges_at_once(self, storage: Storage, ranges: list[tuple[int, int]]) -> None:
        storage.create_if_absent("d/r", [b"0123456789"])
        parts = storage.read_ranges("d/r", ranges)
        assert [bytes(part) for part in parts] == [b"0123456789"[start : start + length] for start, length in ranges]

    def test_several_ranges_that_lie_apart(self, storage: Storage) -> None:
        content = bytes(range(256)) * 4_096
        storage.create_if_absent("d/wide", [content])
        ranges = [(start, 300) for start in range(0, len(content) - 300, 150_001)]
        parts = storage.read_ranges("d/wide", ranges)
        assert [bytes(part) for part in parts] == [content[start : start + 300] for start, _ in ranges]

    @pytest.mark.parametrize("bad", [(0, 11), (10, 1), (50, 5), (11, 0)])
    def test_one_of_several_ranges_beyond_the_end_is_corrupt(self, storage: Storage, bad: tuple[int, int]) -> None:
        storage.create_if_absent("d/r", [b"0123456789"])
        with pytest.raises(CorruptDataError):
            storage.read_ranges("d/r", [(0, 2), bad])
        with pytest.raises(InvalidRequestError):
            storage.read_ranges("d/r", [(0, 2), (-1, 1)])

    @pytest.mark.parametrize("length", [0, 1, 9, 10, 11, 1_000_000])
    def test_tails(self, storage: Storage, length: int) -> None:
        storage.create_if_absent("d/t", [b"0123456789"])
        assert storage.read_tail("d/t", length) == (b"0123456789"[max(0, 10 - length) :], 10)

    @pytest.mark.parametrize("count", [0, 1, 2, 100])
    def test_tails_of_several_files(self, storage: Storage, count: int) -> None:
        for number in range(0, count, 2):
            storage.create_if_absent(f"d/{number}", [b"content of %d" % number], durable=False)
        paths = [f"d/{number}" for number in reversed(range(count))]
        whole = {f"d/{number}": b"content of %d" % number for number in range(0, count, 2)}
        for length in (0, 3, 1_000):
            wanted = [
                (whole[path][max(0, len(whole[path]) - length) :], len(whole[path])) if path in whole else None
                for path in paths
            ]
            assert list(storage.read_tails(paths, length)) == wanted

    def test_a_bad_path_among_several_is_refused(self, storage: Storage) -> None:
        storage.create_if_absent("d/t", [b"0123456789"])
        with pytest.raises(InvalidRequestError):
            storage.read_tails(["d/t", "../out", "d/t"], 3)
        with pytest.raises(InvalidRequestError):
            storage.read_tails(["d/t", "d/t"], -1)

    def test_several_deletes(self, storage: Storage, second_handle: Storage) -> None:
        for number in range(40):
            storage.create_if_absent(f"d/{number}", [b"x"], durable=False)
        storage.delete_many([])
        storage.delete_many([f"d/{number}" for number in range(39)] + ["d/0", "never/was"])
        assert [info.name for info in second_handle.list("d")] == ["39"]
        with pytest.raises(InvalidRequestError):
            storage.delete_many(["../out", "d/39"])
        assert not second_handle.exists("d/39")

    @pytest.mark.parametrize("path", ["d/none", "none", "d/there/below"])
    def test_what_is_not_there(self, storage: Storage, path: str) -> None:
        storage.create_if_absent("d/there", [b"x"])
        calls: list[Callable[[], object]] = [
            lambda: storage.read(path),
            lambda: storage.read_range(path, 0, 1),
            lambda: storage.read_range(path, 0, 0),
            lambda: storage.read_ranges(path, [(0, 1), (2, 1)]),
            lambda: storage.read_tail(path, 1),
            lambda: storage.read_tail(path, 0),
        ]
        for call in calls:
            with pytest.raises(NotFoundError):
                call()
        assert not storage.exists(path)

    def test_a_directory_is_not_a_file(self, storage: Storage) -> None:
        storage.create_if_absent("d/sub/file", [b"x"])
        assert not storage.exists("d/sub")
        with pytest.raises(NotFoundError):
            storage.read("d/sub")

    def test_exists(self, storage: Storage, second_handle: Storage) -> None:
        assert not second_handle.exists("d/e")
        storage.create_if_absent("d/e", [b"x"])
        assert second_handle.exists("d/e")
        storage.delete("d/e")
        assert not second_handle.exists("d/e")

    def test_listing_shows_files_of_that_directory_only(self, storage: Storage) -> None:
        before_ms = SystemClock().now_ms()
        for path in ("d/one", "d/two", "d/sub/three", "dd/four"):
            storage.create_if_absent(path, [path.encode()])
        with storage.turn("d", 1.0):
            files = {info.name: info for info in storage.list("d")}
        assert {name: info.size for name, info in files.items()} == {"one": 5, "two": 5}
        assert all(abs(info.modified_ms - before_ms) < 60_000 for info in files.values())
        assert list(storage.list("nowhere")) == []
        assert list(storage.list("d/one")) == []

    def test_a_second_create_is_refused_and_changes_nothing(self, storage: Storage, second_handle: Storage) -> None:
        storage.create_if_absent("d/x", [b"first"])
        for handle, durable in itertools.product((storage, second_handle), (True, False)):
            with pytest.raises(ExistsError):
                handle.create_if_absent("d/x", [b"other"], durable=durable)
            with pytest.raises(ExistsError):
                handle.create_if_absent("d/x", [b"a longer one"], durable=durable)
            with pytest.raises(ExistsError):
                handle.create_if_absent("d/x", [], durable=durable)
        assert storage.read("d/x") == b"first"
        assert [info.name for info in storage.list("d")] == ["x"]

    def test_the_own_bytes_count_as_success(self, storage: Storage, second_handle: Storage) -> None:
        storage.create_if_absent("d/x", [b"no", b"nce 1"])
        storage.create_if_absent("d/x", [b"nonce 1"])
        second_handle.create_if_absent("d/x", [b"nonce", b" 1"], durable=False)
        assert storage.read("d/x") == b"nonce 1"

    def test_a_refusal_can_be_pickled(self, storage: Storage) -> None:
        storage.create_if_absent("d/x", [b"first"])
        with pytest.raises(ExistsError) as refused:
            storage.create_if_absent("d/x", [b"other"])
        with pytest.raises(NotFoundError) as missing:
            storage.read("d/y")
        for error in (refused.value, missing.value):
            copy = pickle.loads(pickle.dumps(error))  # noqa: S301 -- made two lines above
            assert type(copy) is type(error)
            assert str(copy) == str(error)

    def test_one_winner_per_name(self, storage: Storage, second_handle: Storage) -> None:
        names = [f"race/{number:020d}" for number in range(self.race_names)]
        start = threading.Barrier(4)

        def write(writer: int) -> list[str]:
            handle = (storage, second_handle)[writer % 2]
            won = []
            start.wait()
            for name in names:
                try:
                    handle.create_if_absent(name, [b"%d:" % writer, name.encode()], durable=False)
                except ExistsError:
                    continue
                won.append(name)
            return won

        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(write, range(4)))
        assert sorted(name for won in results for name in won) == names
        for writer, won in enumerate(results):
            for name in won:
                assert storage.read(name) == b"%d:%s" % (writer, name.encode())
        assert len(list(storage.list("race"))) == len(names)

    def test_readers_never_see_part_of_a_file(self, storage: Storage, second_handle: Storage) -> None:
        size = 1_000_000
        stop = threading.Event()
        seen: list[int] = []

        def poll(number: int) -> None:
            while not stop.is_set():
                try:
                    seen.append(len(second_handle.read(f"part/{number % 5}")))
                except NotFoundError:
                    continue

        with ThreadPoolExecutor(2) as pool:
            readers = [pool.submit(poll, number) for number in range(2)]
            try:
                for number in range(5):
                    storage.create_if_absent(f"part/{number}", [bytes(size // 2), bytes(size // 2)])
                    assert {info.size for info in second_handle.list("part")} == {size}
            finally:
                stop.set()
            for reader in readers:
                reader.result()
        assert set(seen) <= {size}

    def test_delete_then_create(self, storage: Storage) -> None:
        storage.create_if_absent("d/x", [b"first"])
        storage.delete("d/x")
        storage.delete("d/x")
        storage.delete("never/was")
        assert list(storage.list("d")) == []
        storage.create_if_absent("d/x", [b"second"])
        assert storage.read("d/x") == b"second"

    def test_awkward_names(self, storage: Storage) -> None:
        for name in self.awkward_names:
            storage.create_if_absent(f"names/{name}", [name.encode()])
        assert {info.name for info in storage.list("names")} == set(self.awkward_names)
        for name in self.awkward_names:
            assert storage.read(f"names/{name}") == name.encode()
            assert storage.exists(f"names/{name}")

    @pytest.mark.parametrize("path", ["/abs", "../out", "d/../../out", ""])
    def test_paths_that_leave_the_store_are_refused(self, storage: Storage, path: str) -> None:
        with pytest.raises(InvalidRequestError):
            storage.create_if_absent(path, [b"x"])

    def test_turn_gives_up_and_lets_go(self, storage: Storage, second_handle: Storage) -> None:
        with storage.turn("d", 1.0) as first, second_handle.turn("d", 0.02) as second:
            assert not (first and second)
        with second_handle.turn("d", 0.02) as again:
            assert again == first

    def test_sweep_spares_finished_files(self, storage: Storage) -> None:
        storage.create_if_absent("d/x", [b"x"])
        assert storage.sweep_temp(0, SystemClock().now_ms() + 3_600_000) == 0
        assert storage.read("d/x") == b"x"

    def test_probe(self, storage: Storage) -> None:
        result = probe(storage, SystemClock())
        assert abs(result.clock_skew_ms) < 1_000
        assert list(storage.list("probe")) == []

    def test_a_watch_tells_of_new_files_or_is_none(self, storage: Storage, second_handle: Storage) -> None:
        watch = storage.watch("new/place")
        if watch is None:
            return
        assert not watch.wait(0)
        second_handle.create_if_absent("new/place/x", [b"x"])
        assert watch.wait(10)
        assert not watch.wait(0)
        watch.close()
        assert not watch.wait(10)

    def test_a_reserve_is_kept_once_and_released_once(self, storage: Storage) -> None:
        storage.create_if_absent("d/x", [b"x"])
        kept = storage.keep_reserve()
        assert storage.keep_reserve() == kept
        assert list(storage.list("")) == []
        assert storage.release_reserve() == kept
        assert storage.release_reserve() == 0
        assert storage.read("d/x") == b"x"

    def test_usage_is_plausible(self, storage: Storage) -> None:
        usage = storage.disk_usage()
        assert usage is None or 0 <= usage[0] <= usage[1]

    def test_closing_leaves_other_handles_alone(self, storage: Storage, second_handle: Storage) -> None:
        storage.create_if_absent("d/x", [b"x"])
        second_handle.close()
        assert storage.read("d/x") == b"x"
        storage.create_if_absent("d/y", [b"y"])
        storage.close()
        storage.close()
