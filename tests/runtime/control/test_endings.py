"""Endings: each is called once, in the order in which they were added."""

from __future__ import annotations

from maniple.runtime.control.endings import Endings


def test_what_is_called_may_remove_itself_and_what_is_removed_is_not_called() -> None:
    endings, called = Endings(), []

    def first() -> None:
        endings.remove(first)
        called.append("first")

    def second() -> None:
        called.append("second")

    def never() -> None:
        called.append("never")

    for call in (first, never, second):
        endings.add(call)
    endings.remove(never)
    endings.remove(never)
    assert [call in endings for call in (first, never, second)] == [True, False, True]
    endings.call_all()
    endings.call_all()
    assert called == ["first", "second", "second"]


def test_what_was_held_back_last_is_released() -> None:
    endings, released = Endings(), []
    endings.release()
    endings.hold_back(lambda: released.append("one"))
    endings.hold_back(lambda: released.append("other"))
    endings.release()
    assert released == ["other"]
