"""Message filters: tag expressions and RocketMQ's SQL92, each as an Arrow mask and as a row predicate.

Both forms come from one syntax tree and agree on every row. Nothing in here knows logs, storage or Spark.
"""

from typing import TYPE_CHECKING

from rmq_spark.lazy_names import lazy_names, listed_names

if TYPE_CHECKING:
    from rmq_spark.filter.message_filter import Filter
    from rmq_spark.filter.sql92 import SqlFilter, compile_sql
    from rmq_spark.filter.syntax_error import EXPRESSION_BYTES_MAX, FilterSyntaxError
    from rmq_spark.filter.tag import TagFilter, compile_tags

__all__ = [
    "EXPRESSION_BYTES_MAX",
    "Filter",
    "FilterSyntaxError",
    "SqlFilter",
    "TagFilter",
    "compile_sql",
    "compile_tags",
]

__getattr__ = lazy_names(
    __name__,
    {
        "EXPRESSION_BYTES_MAX": "rmq_spark.filter.syntax_error",
        "Filter": "rmq_spark.filter.message_filter",
        "FilterSyntaxError": "rmq_spark.filter.syntax_error",
        "SqlFilter": "rmq_spark.filter.sql92",
        "TagFilter": "rmq_spark.filter.tag",
        "compile_sql": "rmq_spark.filter.sql92",
        "compile_tags": "rmq_spark.filter.tag",
    },
)
__dir__ = listed_names(__name__, __all__)
