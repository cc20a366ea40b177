# `make run` and `make test` need Python 3.11, 3.12 or 3.13 and nothing else.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
# Both can be changed: make run NUM_EXAMPLES=500 OUTPUT=data/small
NUM_EXAMPLES ?= 4000
IMAGE_SIZE ?= 64
EPOCHS ?= 16
OUTPUT ?= data/synthetic
WORKDIR ?= runs/synthetic

.PHONY: run test search flink flink-parts lint clean help

help:
	@echo "make run    set up, draw $(NUM_EXAMPLES) synthetic scans, build TFRecords, verify, train a small network"
	@echo "make test   set up and run the tests"
	@echo "make search try the property tests on many new random examples"
	@echo "make flink  build on a Flink cluster of this machine and compare the bytes"
	@echo "make lint   check style, format and types"
	@echo "make clean  remove the virtual environment; datasets in data/ and runs/ stay"

run: $(VENV)/installed
	$(BIN)/python pipelines/build_tfrecords.py --source synthetic --num_examples $(NUM_EXAMPLES) --image_size $(IMAGE_SIZE) --output $(OUTPUT)
	$(BIN)/python -m tfrecord_io verify $(OUTPUT)
	$(BIN)/python -m tfrecord_io show $(OUTPUT) --output $(OUTPUT)/grid.png
# Drawn scans vary less than real ones, so less augmentation teaches them sooner.
	$(BIN)/python train/run.py --data $(OUTPUT) --workdir $(WORKDIR) --epochs $(EPOCHS) \
	  --augment_strength 0.25 --mixup 0 --class_weight_power 1
	@echo "Open $(OUTPUT)/report.html and $(WORKDIR)/report.html; next: python train/predict.py --model $(WORKDIR) --input SCAN.jpeg"

# What takes longer than ten seconds runs in .ci/run. Two processes share the test files, because
# much of the time goes into waiting for single-threaded starts; conftest.py orders the files.
test: $(VENV)/installed
	$(BIN)/python -m pytest -m "not slow" --numprocesses 2 --dist loadfile --no-loadscope-reorder

# Property tests with new random examples, many of each; a failure prints how to run it again.
search: $(VENV)/installed
	HYPOTHESIS_PROFILE=search $(BIN)/python -m pytest --timeout=3000 -m hypothesis

# A real Flink cluster of this machine; docs/flink.md says what it needs besides Java and mvn.
flink: flink-parts
	$(BIN)/python scripts/flink_cluster.py compare --source synthetic --num_examples $(NUM_EXAMPLES)

flink-parts: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements/lock.txt --editable '.[flink]'
	$(BIN)/python scripts/flink_cluster.py fetch

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python --preset strict tfrecord_io
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python --preset basic pipelines train scan_tfrecords.py
# The rest is not annotated, but must call every function with the arguments that it has.
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python --only missing-argument,unexpected-keyword,bad-argument-count --search-path . --search-path benchmarks --search-path tests benchmarks scripts tests

clean:
	rm -rf $(VENV) build *.egg-info

# The lock pins every version; setup.py says which ranges should work.
$(VENV)/installed: setup.py requirements/lock.txt
	@$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info[:2] <= (3, 13); sys.exit(None if ok else "this needs Python 3.11, 3.12 or 3.13, and %s is %d.%d; say which to use with make PYTHON=..." % (sys.executable, *sys.version_info[:2]))'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint requirements/lock.txt --editable '.[all]'
	@touch $@
