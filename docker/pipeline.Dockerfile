# The build job in one image: a worker of Dataflow, Flink and Spark (Beam's boot program), and the
# plain command.
#
#   docker build --file docker/pipeline.Dockerfile --tag scan-tfrecords-pipeline .
#   docker run --rm --user "$(id -u):$(id -g)" --volume "$PWD/data:/data" --entrypoint python \
#       scan-tfrecords-pipeline pipelines/build_tfrecords.py \
#       --input /data/kermany2018.zip --output /data/oct
#
# The three bases are pinned by their tags, and can be replaced by a mirror or a digest with
# --build-arg.
ARG PYTHON_IMAGE=docker.io/library/python:3.11.14-slim-bookworm
ARG COMPILER_IMAGE=docker.io/library/python:3.11.14-bookworm
ARG BEAM_IMAGE=docker.io/apache/beam_python3.11_sdk:2.77.0

FROM ${BEAM_IMAGE} AS beam

# The wheel, with the kernel in C: the slim image has no compiler.
FROM ${COMPILER_IMAGE} AS wheel
WORKDIR /src
COPY setup.py pyproject.toml scan_tfrecords.py ./
COPY pipelines pipelines
COPY tfrecord_io tfrecord_io
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${PYTHON_IMAGE} AS install
WORKDIR /src
ENV PATH=/opt/venv/bin:${PATH} PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/venv
# With an edited module this layer stays as it is.
COPY requirements/pipeline.txt requirements/pipeline.txt
RUN pip install --no-compile --no-deps --require-hashes --requirement requirements/pipeline.txt
# Compiled here, for a worker may not write; by hash, so that no time of day is in the image.
COPY --from=wheel /wheels /wheels
RUN pip install --no-compile --no-deps /wheels/*.whl \
    && python -c 'import tfrecord_io.decoding._resize' \
    && pip check \
    && python -m compileall -q --invalidation-mode unchecked-hash /opt/venv/lib

FROM ${PYTHON_IMAGE}
# By default Beam's boot program makes a virtual environment of its own, in which this one's
# packages are not found.
ENV PATH=/opt/venv/bin:${PATH} \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1
WORKDIR /app
COPY --from=beam /opt/apache/beam/boot /opt/apache/beam/boot
COPY --from=install /opt/venv /opt/venv
COPY pipelines/build_tfrecords.py pipelines/build_tfrecords.py
# No USER: Dataflow mounts folders of root into its workers.
# The plain command needs no root: start it with --user, as above.
ENTRYPOINT ["/opt/apache/beam/boot"]
