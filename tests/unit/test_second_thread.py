"""Work that a second thread may do: done once, by whoever comes first, and what goes wrong reaches who asks."""

from __future__ import annotations

import os
import threading
import weakref

import pytest

from rmq_spark.log.second_thread import meanwhile


def test_it_is_done_by_the_other_thread_and_once() -> None:
    begun = threading.Event()
    done: list[str] = []

    def work() -> str:
        begun.set()
        done.append(threading.current_thread().name)
        return "answer"

    answer = meanwhile(work, many=True)
    assert begun.wait(10)
    assert (answer(), answer()) == ("answer", "answer")
    assert len(done) == 1
    assert done[0] != threading.current_thread().name


def test_a_little_work_is_done_by_who_asks_and_once() -> None:
    done: list[int] = []
    answer = meanwhile(lambda: done.append(threading.get_ident()), many=False)
    assert done == []
    answer()
    answer()
    assert done == [threading.get_ident()]


def test_who_asks_does_it_while_the_other_thread_is_busy() -> None:
    begun, go_on = threading.Event(), threading.Event()
    slow = meanwhile(lambda: (begun.set(), go_on.wait(10)), many=True)
    assert begun.wait(10)
    assert meanwhile(threading.get_ident, many=True)() == threading.get_ident()
    go_on.set()
    assert slow() == (None, True)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_what_goes_wrong_reaches_who_asks(many: bool, error: type[BaseException]) -> None:
    def work() -> None:
        raise error

    answer = meanwhile(work, many=many)
    for _ in range(2):
        with pytest.raises(error):
            answer()


@pytest.mark.parametrize("many", [False, True])
def test_work_that_failed_is_done_anew(many: bool) -> None:
    begun = threading.Event()
    left = [MemoryError, MemoryError]

    def work() -> str:
        begun.set()
        if left:
            raise left.pop()
        return "answer"

    answer = meanwhile(work, many=many)
    if many:
        assert begun.wait(10)  # the first failure is the other thread's
    else:
        left.pop()
    with pytest.raises(MemoryError):
        answer()
    assert answer() == "answer"


def test_what_the_work_held_is_let_go_when_it_is_done() -> None:
    class Rows:
        """Something large."""

        def count(self) -> int:
            return 1

    rows = Rows()
    held = weakref.ref(rows)
    answer = meanwhile(rows.count, many=False)
    del rows
    assert held() is not None
    assert answer() == 1
    assert held() is None


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # Python 3.12: fork beside threads, on purpose
def test_a_forked_child_has_a_thread_of_its_own() -> None:
    assert meanwhile(lambda: 1, many=True)() == 1
    child = os.fork()
    if child == 0:
        begun = threading.Event()
        meanwhile(begun.set, many=True)
        os._exit(0 if begun.wait(10) else 1)
    assert os.waitpid(child, 0)[1] == 0
