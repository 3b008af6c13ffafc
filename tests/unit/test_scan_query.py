"""What a query may be made of."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_spark.log.scan import Query


def test_one_topic_as_a_text_is_refused_because_it_would_match_parts_of_the_name() -> None:
    text: Any = "orders_eu"
    with pytest.raises(TypeError, match=r"topics is a set of names; write frozenset\(\{'orders_eu'\}\)"):
        Query(topics=text)
    assert Query(topics=frozenset({"orders_eu"})).topics == {"orders_eu"}


@pytest.mark.parametrize("field", ["keys", "columns", "predicate_columns"])
def test_one_name_as_a_text_is_refused_because_its_letters_would_be_meant(field: str) -> None:
    text: Any = {field: "order-1"}
    with pytest.raises(TypeError, match=rf"{field} is a (set|tuple) of names; write .*'order-1'"):
        Query(**text)
