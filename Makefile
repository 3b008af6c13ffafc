# Everything runs in .venv, which `setup` makes from the pinned versions in requirements.lock.
# Needed beforehand: Python 3.11 or newer, Java 17, make, git.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Stamps: setup runs again when the dependencies change, the jars are fetched again when their pins do.
INSTALLED := $(VENV)/.installed
FETCHED := $(VENV)/.fetched
EXTRAS := cli,hdfs,s3,fast,spark,delta,metrics,proxy,dev
# pyspark comes as a source archive, which setuptools and wheel must build: an empty pip cache has nothing else
BUILD := hatchling editables setuptools wheel
JARS := hdfs rocketmq-filter rocketmq-client delta
# The peers that benchmarks/spark.py measures against.
BENCH_JARS := delta kafka spark-kafka
WORKERS ?= 2
DEMO_STORE ?=

.DEFAULT_GOAL := help
.PHONY: help setup jars demo demo-store check format test test-slow test-peer test-s3 bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## make .venv with the rmq command and all extras, at pinned versions

demo: $(INSTALLED) ## orders come in, Spark adds them up into another topic and looks back in time; on an embedded store
	@$(BIN)/python -m rmq_spark.demo_spark

demo-store: $(INSTALLED) ## the same without Spark: create a store, send, read back, filter, verify (DEMO_STORE=path keeps it)
	@DEMO_STORE="$(DEMO_STORE)" $(BIN)/python -m rmq_spark.demo

check: $(INSTALLED) ## format, lint, types, architecture and unit tests; under two minutes
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadscope tests/architecture tests/unit

test: $(INSTALLED) $(FETCHED) ## all tests except the long ones
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m "not slow and not peer"

test-slow: $(INSTALLED) $(FETCHED) ## the long simulations and kill runs
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m slow

test-peer: $(INSTALLED) $(FETCHED) ## the story of Apache's clients on RocketMQ 5.5.0 itself; its transcripts are what ours are compared with
	$(BIN)/python -m rmq_spark.testing.jars rocketmq > /dev/null
	$(BIN)/python -m pytest -m peer

test-s3: $(INSTALLED) ## the storage tests against versitygw, a stricter S3 server; needs Go
	GOBIN=$(abspath $(VENV))/go CGO_ENABLED=0 go install github.com/versity/versitygw/cmd/versitygw@v1.8.0
	RMQ_VERSITYGW=$(abspath $(VENV))/go/versitygw $(BIN)/python -m pytest -q tests/storage/test_object_store.py

bench: $(INSTALLED) ## run the benchmarks in benchmarks/ and print their numbers
	@$(BIN)/python -m rmq_spark.testing.jars $(BENCH_JARS) > /dev/null
	@for script in benchmarks/[a-z]*.py; do echo "== $$script"; $(BIN)/python "$$script" || exit 1; done

jars: $(FETCHED) ## fetch the Java archives that tests need into the cache (RMQ_CACHE or ~/.cache/rmq-spark)

format: $(INSTALLED) ## rewrite the code as ruff wants it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove .venv and the tools' caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(INSTALLED): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or newer is needed; set PYTHON=...")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c requirements.lock $(BUILD)
	$(BIN)/pip install --quiet --disable-pip-version-check -c requirements.lock --no-build-isolation -e ".[$(EXTRAS)]"
	$(BIN)/python -m compileall -q rmq_spark datasource
	@touch $@

$(FETCHED): rmq_spark/testing/jars.py rmq_spark/testing/jars.lock | $(INSTALLED)
	$(BIN)/python -m rmq_spark.testing.jars $(JARS)
	@touch $@
