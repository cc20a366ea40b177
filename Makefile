# `make run` and `make test` need Python 3.11, 3.12 or 3.13 and nothing else.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
# pip unpacks in silence for minutes, so a watch beside it prints how large the environment is. The
# watch ends with the shell that started it, and its `sleep` keeps no pipe open.
PIP := @while sleep 10 >/dev/null 2>&1 && kill -0 $$$$ 2>/dev/null; do \
	echo "still installing: $(VENV) has $$(du -sm $(VENV) | cut -f1) MB"; done & \
	trap "kill $$!" EXIT; \
	$(BIN)/python -m pip install --disable-pip-version-check
# What a requirements file pins, each file checked by its hash, then this clone. The file is complete,
# so that pip need not look for dependencies.
INSTALL = $(PIP) --no-deps --require-hashes --requirement requirements/$(1).txt && \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
# All can be changed: make run NUM_EXAMPLES=500 OUTPUT=data/small
IMAGE_SIZE ?= 64
ifdef INPUT
# Scans of one's own, a folder or a zip; BUILD_FLAGS adds flags such as --labels labels.csv.
NAME := $(shell basename "$(INPUT)" | sed 's/\.zip$$//')
# A first look: at most so many scans of each split, and a training of so many images.
LIMIT ?= 3200
IMAGES_SHOWN ?= 25600
EPOCHS ?= $$($(BIN)/python scripts/epochs.py "$(OUTPUT)" $(IMAGES_SHOWN))
SPLITS = $(if $(findstring --splits,$(BUILD_FLAGS)),,--splits auto)
BUILD = --input "$(INPUT)" $(SPLITS) --limit $(LIMIT) $(BUILD_FLAGS)
NEXT = $(BIN)/scan-tfrecords predict --run '$(WORKDIR)' --input SCAN
else
NAME := synthetic
NUM_EXAMPLES ?= 3200
EPOCHS ?= 8
# They all have one shape, so that stretching them to small squares loses less than padding.
BUILD = --source synthetic --num_examples $(NUM_EXAMPLES) --fit stretch $(BUILD_FLAGS)
# Drawn scans vary less than real ones, so less augmentation teaches them sooner.
TRAIN_FLAGS ?= --augment_strength 0.25 --mixup 0 --class_weight_power 1
NEXT = make run INPUT=FOLDER_OR_ZIP_OF_YOUR_SCANS
endif
OUTPUT ?= data/$(NAME)
WORKDIR ?= runs/$(NAME)

.PHONY: run test docs search flink flink-parts lint clean help

help:
	@echo "make run    set up, draw $(NUM_EXAMPLES) synthetic scans, build, audit and train: minutes on two cores"
	@echo "make run INPUT=scans/   the same with a folder or zip of your own"
	@echo "make test   set up and run the tests"
	@echo "make docs   build the documentation site into build/site"
	@echo "make search try the property tests on many new random examples"
	@echo "make flink  build on a Flink cluster of this machine and compare the bytes"
	@echo "make lint   check style, format and types"
	@echo "make clean  remove the virtual environment; datasets in data/ and runs/ stay"

run: $(VENV)/installed-run
	$(BIN)/scan-tfrecords build $(BUILD) --image_size $(IMAGE_SIZE) --output "$(OUTPUT)"
	$(BIN)/scan-tfrecords verify "$(OUTPUT)"
	$(BIN)/scan-tfrecords audit "$(OUTPUT)"
	$(BIN)/scan-tfrecords train --data "$(OUTPUT)" --workdir "$(WORKDIR)" --epochs $(EPOCHS) $(TRAIN_FLAGS)
	@echo
	@echo "the data:    $(OUTPUT)/report.html"
	@echo "the network: $(WORKDIR)/report.html"
	@echo "next:        $(NEXT)"

# What takes longer than about four seconds runs in .ci/run. Three processes share the test files,
# because much of the time goes into waiting for single-threaded starts; conftest.py orders them.
test: $(VENV)/installed
	$(BIN)/python -m pytest -m "not slow" --numprocesses 3 --dist loadfile --no-loadscope-reorder

# Property tests with new random examples, many of each; a failure prints how to run it again.
search: $(VENV)/installed
	HYPOTHESIS_PROFILE=search $(BIN)/python -m pytest --timeout=3000 -m hypothesis

# A real Flink cluster of this machine; docs/clusters.md describes it.
flink: flink-parts
	$(BIN)/python scripts/flink_cluster.py --source synthetic --num_examples $(NUM_EXAMPLES)

flink-parts: $(VENV)/installed
	$(call INSTALL,ci)
	test -d build/flink-job-server || { mvn -B -q -f scripts/flink_job_server.xml \
		dependency:copy-dependencies -DincludeScope=runtime \
		-DoutputDirectory=$(CURDIR)/build/flink-job-server.part && \
		mv build/flink-job-server.part build/flink-job-server; }

# Needs no network after its packages are installed; a broken link fails it.
docs: $(VENV)/installed
	$(BIN)/python scripts/docs_pages.py
	$(BIN)/zensical build --strict --clean
	@echo "Open build/site/index.html"

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python --preset strict tfrecord_io
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python --preset basic pipelines train scan_tfrecords.py
# The rest is not annotated, but must call every function with the arguments that it has.
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python --only missing-argument,unexpected-keyword,bad-argument-count --search-path . --search-path benchmarks --search-path tests --search-path tests/helpers benchmarks scripts tests

clean:
	rm -rf $(VENV) build *.egg-info

# setup.py says which versions should work, requirements/ which were tested. `make run` installs what
# README's commands need, everything else adds the developers' packages. Where there is a C compiler,
# the kernel that resizes is built, into tfrecord_io/decoding/.
$(VENV)/installed-run: setup.py requirements/run.txt tfrecord_io/decoding/_resize.c
	@$(PYTHON) -c 'import sys; ok = (3, 11) <= sys.version_info[:2] <= (3, 13); sys.exit(None if ok else "this needs Python 3.11, 3.12 or 3.13, and %s is %d.%d; say which to use with make PYTHON=..." % (sys.executable, *sys.version_info[:2]))'
	$(PYTHON) -m venv $(VENV)
	$(call INSTALL,run)
	@touch $@

$(VENV)/installed: $(VENV)/installed-run requirements/dev.txt
	$(call INSTALL,dev)
	@touch $@
