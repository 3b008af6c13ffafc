"""Parts of `benchmarks/spark.py`: the same messages in four places, and what is measured on them."""
