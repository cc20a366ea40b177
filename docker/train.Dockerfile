# The trainer with TensorFlow and its CUDA libraries; the host needs the NVIDIA driver and the
# container toolkit alone.
#
#   docker build --file docker/train.Dockerfile --tag scan-tfrecords-train .
#   docker run --rm --gpus all --user "$(id -u):$(id -g)" --volume "$PWD/data:/data" \
#       scan-tfrecords-train --data /data/oct --workdir /data/run
#
# Without a GPU: --build-arg REQUIREMENTS=run (some 4 GB less).
ARG PYTHON_IMAGE=docker.io/library/python:3.11.14-slim-bookworm
ARG COMPILER_IMAGE=docker.io/library/python:3.11.14-bookworm

# The wheel, with the kernel in C: the slim image has no compiler.
FROM ${COMPILER_IMAGE} AS wheel
WORKDIR /src
COPY setup.py pyproject.toml scan_tfrecords.py ./
COPY tfrecord_io tfrecord_io
COPY train train
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM ${PYTHON_IMAGE} AS install
ARG REQUIREMENTS=cuda
WORKDIR /src
ENV PATH=/opt/venv/bin:${PATH} PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/venv
# With an edited module this layer stays as it is.
COPY requirements requirements
RUN pip install --no-compile --no-deps --require-hashes --requirement "requirements/${REQUIREMENTS}.txt"
# Compiled here, for the user may not write; by hash, so that no time of day is in the image.
COPY --from=wheel /wheels /wheels
RUN pip install --no-compile --no-deps /wheels/*.whl \
    && python -c 'import tfrecord_io.decoding._resize' \
    && pip check \
    && python -m compileall -q --invalidation-mode unchecked-hash /opt/venv/lib

FROM ${PYTHON_IMAGE}
ENV PATH=/opt/venv/bin:${PATH} \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /app
COPY --from=install /opt/venv /opt/venv
COPY train/run.py train/run.py
RUN useradd --create-home --uid 1000 trainer
USER 1000
ENTRYPOINT ["python", "train/run.py"]
