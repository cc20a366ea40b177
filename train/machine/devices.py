"""The devices that train, and their arithmetic."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tfrecord_io.terminal import flags
from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.flags import flag
from train.machine import console


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """Which devices train, and in which arithmetic."""

    precision: str = flag(
        "auto",
        "arithmetic of the layers in training; weights, evaluation and export are float32; "
        "auto: bfloat16 on a GPU or CPU with hardware support, else float32",
        choices=("auto", "float32", "bfloat16"),
    )
    deterministic: bool = flag(
        False, "use only operations that give the same bits every time; slower on a GPU"
    )
    gpus: int | None = flag(
        None,
        "number of devices to train on (default: all visible ones)",
        least=1,
        is_operational=True,
        alias="devices",
    )
    cpu_devices: int | None = flag(
        None,
        "split the CPU into this many devices, to test replicas without a GPU",
        least=1,
        is_operational=True,
    )

    __post_init__ = flags.check


@dataclasses.dataclass(frozen=True, kw_only=True)
class Devices:
    """The devices of a run, one a replica.

    Attributes:
        strategy: TensorFlow's distribution, or None on JAX.
        mesh: JAX's devices in their order, or None on TensorFlow.
        best_precision: arithmetic that suits them.
    """

    backend: str
    names: tuple[str, ...]
    strategy: Any = None
    mesh: Any = None
    on_gpu: bool = False
    best_precision: str = "float32"

    @property
    def num_replicas(self) -> int:
        return len(self.names)

    def sharding(self, *axes: str) -> Any:
        """JAX: a copy of an array on every device; of `batch`, each its part of the first axis."""
        import jax

        return jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec(*axes))

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """The context in which variables are created so that every replica has them."""
        return self.strategy.scope() if self.strategy is not None else contextlib.nullcontext()


def configure_devices(options: DeviceOptions) -> Devices:
    """Chooses the devices and sets them up; UserError if they are not there, or in use."""
    import keras

    # Looking for GPUs where there are none makes the CUDA driver complain.
    with console.hide_native_noise():
        on_jax = keras.backend.backend() == "jax"
        try:
            devices = _configure_jax(options) if on_jax else _configure_tensorflow(options)
        except RuntimeError as error:
            raise UserError(
                "the devices of this process are in use already, too late to set them up, or "
                f"cannot be used: {error}"
            ) from error
    if options.gpus and not (devices.on_gpu or options.cpu_devices):
        console.warn(f"--devices {options.gpus}: there is no GPU here, so the CPU trains")
    return devices


def _configure_tensorflow(options: DeviceOptions) -> Devices:
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if options.cpu_devices:
        cpu = tf.config.list_physical_devices("CPU")[0]
        parts = [tf.config.LogicalDeviceConfiguration()] * options.cpu_devices
        tf.config.set_logical_device_configuration(cpu, parts)
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    if not gpus:
        # This pass of the graph optimizer fails on residual branches in bfloat16 and says so on
        # the console; without it a CPU trains as fast.
        tf.config.optimizer.set_experimental_options({"remapping": False})
    available = tf.config.list_logical_devices("GPU" if gpus else "CPU")
    names = _chosen([device.name.removeprefix("/device:") for device in available], options)
    strategy = (
        tf.distribute.OneDeviceStrategy(names[0])
        if len(names) == 1
        else tf.distribute.MirroredStrategy(names)
    )
    details = map(tf.config.experimental.get_device_details, gpus)
    capabilities = [detail.get("compute_capability", (0, 0)) for detail in details]
    # Tensor cores compute in bfloat16 from Ampere on (CUDA programming guide).
    is_fast = min(capabilities) >= (8, 0) if gpus else _cpu_computes_in_bfloat16()
    return Devices(
        backend="tensorflow",
        names=tuple(names),
        strategy=strategy,
        on_gpu=bool(gpus),
        best_precision="bfloat16" if is_fast else "float32",
    )


def _configure_jax(options: DeviceOptions) -> Devices:
    import jax
    import keras

    if options.deterministic:
        raise UserError(
            "--deterministic is TensorFlow's alone; leave it out, or use KERAS_BACKEND=tensorflow"
        )
    # JAX reads this when it opens its devices. See "GPU memory allocation" in its manual.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if options.cpu_devices:
        jax.config.update("jax_num_cpu_devices", options.cpu_devices)
    devices = _chosen(jax.devices(), options)
    jax.config.update("jax_default_device", devices[0])
    # Every variable on every device.
    parallel = functools.partial(keras.distribution.DataParallel, auto_shard_dataset=False)
    keras.distribution.set_distribution(parallel(devices=devices) if len(devices) > 1 else None)
    on_gpu = devices[0].platform == "gpu"
    if on_gpu and jax.config.jax_compilation_cache_dir is None:
        # XLA tries algorithms for each convolution, which takes longer than a short training.
        # Without a home to write to, every run compiles.
        with contextlib.suppress(OSError, RuntimeError):
            home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
            (folder := Path(home, "scan_tfrecords", "xla")).mkdir(parents=True, exist_ok=True)
            jax.config.update("jax_compilation_cache_dir", str(folder))
    return Devices(
        backend="jax",
        names=tuple(map(str, devices)),
        mesh=jax.sharding.Mesh(np.array(devices), ("batch",)),
        on_gpu=on_gpu,
        best_precision="bfloat16" if on_gpu else "float32",
    )


def _chosen(available: list[Any], options: DeviceOptions) -> list[Any]:
    """Returns the devices that train, one a replica."""
    wanted = options.gpus or len(available)
    if wanted > len(available):
        raise UserError(
            f"--devices {wanted}: there are {len(available)} devices "
            f"({', '.join(map(str, available))}); use fewer, or --cpu_devices to try replicas on "
            "the CPU"
        )
    return available[:wanted]


def versions() -> dict[str, str]:
    """Returns the versions of Python, Keras, the backend and NumPy, by name."""
    import keras

    names = ("keras", keras.backend.backend(), "numpy")
    found = {name: importlib.metadata.version(name) for name in names}
    return {"python": sys.version.split()[0], **found}


def _cpu_computes_in_bfloat16() -> bool:
    """Tells whether the CPU multiplies matrices in bfloat16 (Intel's AMX), by oneDNN.

    Elsewhere bfloat16 is slower than float32: AVX-512's instructions took 1.7 times as long.
    """
    if os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0":  # which TensorFlow reads
        return False
    with contextlib.suppress(OSError):
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("flags")[2]
        return "amx_bf16" in flags.partition("\n")[0].split()
    return False
