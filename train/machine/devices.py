"""The devices of a run: which ones, how much of their memory, and who works together."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib.metadata
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tfrecord_io.terminal import flags
from tfrecord_io.terminal.errors import UserError
from tfrecord_io.terminal.flags import flag
from train.machine import console

#: Tensor cores compute in bfloat16 from this CUDA compute capability on (Ampere), and in float16
#: from 7.0 (Volta). Source: NVIDIA's CUDA programming guide, table of compute capabilities.
_BFLOAT16_CAPABILITY = (8, 0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeviceOptions:
    """Which devices train, and in which arithmetic."""

    precision: str = flag(
        "auto",
        "arithmetic of the layers in training; weights, evaluation and export are float32; "
        "auto: bfloat16 on a GPU or CPU with hardware support, else float32",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    jit_compile: bool | None = flag(
        None,
        "compile the step with XLA (default: yes on one GPU, else no; JAX always compiles)",
        can_be_negated=True,
    )
    deterministic: bool = flag(
        False,
        "use only operations that give the same bits every time; slower on a GPU",
        can_be_negated=True,
    )
    strategy: str = flag(
        "auto",
        "auto: multi_worker if TF_CONFIG is set, mirrored with more than one device, else single",
        choices=("auto", "single", "mirrored", "multi_worker"),
        is_operational=True,
    )
    gpus: int | None = flag(
        None,
        "number of devices to train on (default: all visible ones)",
        least=1,
        is_operational=True,
        alias="devices",
    )
    gpu_memory: str = flag(
        "growth",
        "growth: allocate as needed; all: allocate all at the start; a number: limit in MB",
        metavar="growth|all|MB",
        is_operational=True,
    )
    cpu_devices: int | None = flag(
        None,
        "split the CPU into this many devices, to test replicas without a GPU",
        least=1,
        is_operational=True,
    )

    def __post_init__(self) -> None:
        flags.check(self)
        if self.gpu_memory not in ("growth", "all") and not self.gpu_memory.isdigit():
            raise ValueError(
                f"--gpu_memory must be growth, all or a number of MB; received {self.gpu_memory!r}"
            )

    @property
    def kind(self) -> str:
        """The strategy, with what TF_CONFIG says."""
        is_cluster = self.strategy == "auto" and os.environ.get("TF_CONFIG")
        return "multi_worker" if is_cluster else self.strategy


@dataclasses.dataclass(frozen=True, kw_only=True)
class Devices:
    """The devices of a run and how they share it.

    Attributes:
        backend: Keras' backend, `tensorflow` or `jax`.
        names: devices of this process, one a replica.
        num_workers: processes that train together.
        worker_index: this one.
        strategy: TensorFlow's distribution, or None on JAX.
        mesh: JAX's devices in their order, or None on TensorFlow.
        on_gpu: whether the replicas are GPUs.
        best_precision: arithmetic that suits them.
    """

    backend: str
    names: tuple[str, ...]
    num_workers: int = 1
    worker_index: int = 0
    strategy: Any = None
    mesh: Any = None
    on_gpu: bool = False
    best_precision: str = "float32"

    @property
    def num_replicas(self) -> int:
        return len(self.names) * self.num_workers

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the files of the run."""
        return self.worker_index == 0

    @property
    def best_jit_compile(self) -> bool:
        """XLA pays on a GPU; on a CPU compiling takes longer than it saves in a short run."""
        return self.backend == "jax" or (self.on_gpu and self.num_replicas == 1)

    def sharding(self, *axes: str) -> Any:
        """JAX: a copy of an array on every device; of `batch`, each its part of the first axis."""
        import jax

        return jax.sharding.NamedSharding(self.mesh, jax.sharding.PartitionSpec(*axes))

    def alone(self) -> Devices:
        """Returns the devices of this process alone, for work that the workers do not share.

        On JAX, all that is built from now on is placed on these devices.
        """
        if self.mesh is None or self.num_workers == 1:
            return self
        import jax
        import keras

        keras.distribution.set_distribution(None)
        mesh = jax.sharding.Mesh(np.array(self.mesh.local_devices[:1]), ("batch",))
        alone = {"num_workers": 1, "worker_index": 0}
        return dataclasses.replace(self, names=self.names[:1], mesh=mesh, **alone)

    def say(self, text: str) -> None:
        """Prints a line, once for all workers."""
        if self.is_chief:
            print(text, flush=True)

    def warn(self, text: str) -> None:
        """Prints a warning to the error stream, once for all workers."""
        if self.is_chief:
            print(f"warning: {text}", file=sys.stderr, flush=True)

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """The context in which variables are created so that every replica has them."""
        return self.strategy.scope() if self.strategy is not None else contextlib.nullcontext()


def configure_devices(options: DeviceOptions) -> Devices:
    """Chooses the devices and sets them up, before anything is put on one.

    Raises:
        UserError: if the devices asked for are not there, or are in use already.
    """
    import keras

    # Looking for GPUs where there are none makes the CUDA driver complain.
    with console.hide_native_noise():
        console.check_backend(keras.backend.backend())
        on_jax = keras.backend.backend() == "jax"
        try:
            devices = _configure_jax(options) if on_jax else _configure_tensorflow(options)
        except RuntimeError as error:
            raise UserError(
                "the devices of this process are in use already, too late to set them up, or "
                f"cannot be used: {error}"
            ) from error
    if options.gpus and not (devices.on_gpu or options.cpu_devices) and devices.is_chief:
        told = f"warning: --devices {options.gpus}: there is no GPU here, so the CPU trains"
        print(told, file=sys.stderr)
    return devices


def _configure_tensorflow(options: DeviceOptions) -> Devices:
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    part = tf.config.LogicalDeviceConfiguration
    for gpu in gpus:
        if options.gpu_memory == "growth":
            tf.config.experimental.set_memory_growth(gpu, True)
        elif options.gpu_memory != "all":
            limit = part(memory_limit=int(options.gpu_memory))
            tf.config.set_logical_device_configuration(gpu, [limit])
    if options.cpu_devices:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [part()] * options.cpu_devices)
    if options.deterministic:
        tf.config.experimental.enable_op_determinism()
    workers, worker_index = _workers(options)
    kind = "GPU" if gpus else "CPU"
    if workers:
        # Collectives must be set up before any other operation runs.
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
        # All workers have the same number of batches, so they need not ask each other before each
        # step whether there is one. The question would also count as waiting for input.
        strategy.extended.experimental_enable_get_next_as_optional = False
        num_local = strategy.num_replicas_in_sync // len(workers)
        names = [f"{kind}:{index}" for index in range(num_local)]
    else:
        if not gpus:
            # This pass of the graph optimizer fails on residual branches in bfloat16 and says so on
            # the console; without it a CPU trains as fast.
            tf.config.optimizer.set_experimental_options({"remapping": False})
        available = tf.config.list_logical_devices(kind)
        names = _chosen([each.name.removeprefix("/device:") for each in available], options)
        is_one = len(names) == 1
        strategy = (
            tf.distribute.OneDeviceStrategy(names[0])
            if is_one
            else tf.distribute.MirroredStrategy(names)
        )
    details = map(tf.config.experimental.get_device_details, gpus)
    capabilities = [each.get("compute_capability", (0, 0)) for each in details]
    is_fast = min(capabilities) >= _BFLOAT16_CAPABILITY if gpus else _cpu_computes_in_bfloat16()
    return Devices(
        backend="tensorflow",
        names=tuple(names),
        num_workers=len(workers) or 1,
        worker_index=worker_index,
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
    # JAX reads these when it opens its devices. See "GPU memory allocation" in its manual.
    if options.gpu_memory == "growth":
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    elif options.gpu_memory != "all":
        raise UserError("with JAX --gpu_memory is growth or all")
    if options.cpu_devices:
        jax.config.update("jax_num_cpu_devices", options.cpu_devices)
    workers, worker_index = _workers(options)
    if workers:
        jax.distributed.initialize(workers[0], len(workers), worker_index)
    devices = jax.devices() if workers else _chosen(jax.devices(), options)
    local = [device for device in devices if device.process_index == worker_index]
    jax.config.update("jax_default_device", local[0])
    # Every variable on every device.
    parallel = functools.partial(keras.distribution.DataParallel, auto_shard_dataset=False)
    keras.distribution.set_distribution(parallel(devices=devices) if len(devices) > 1 else None)
    on_gpu = devices[0].platform == "gpu"
    if on_gpu:
        keep_compiled()
    return Devices(
        backend="jax",
        names=tuple(map(str, local)),
        num_workers=len(workers) or 1,
        worker_index=worker_index,
        mesh=jax.sharding.Mesh(np.array(devices), ("batch",)),
        on_gpu=on_gpu,
        best_precision="bfloat16" if on_gpu else "float32",
    )


def keep_compiled() -> None:
    """JAX: keeps what XLA compiles for the next run; JAX_COMPILATION_CACHE_DIR names another place.

    On a GPU, XLA tries algorithms for each convolution, which takes longer than a short training.
    """
    import jax

    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "scan_tfrecords", "xla")
    # Without a home to write to, every run compiles.
    with contextlib.suppress(OSError, RuntimeError):
        if jax.config.jax_compilation_cache_dir is None:
            (folder := folder.expanduser()).mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):  # else JAX warns of each function
                jax.config.update("jax_compilation_cache_dir", str(folder))


def _workers(options: DeviceOptions) -> tuple[list[str], int]:
    """Returns (addresses of the workers, none if there is one; index of this one) of TF_CONFIG."""
    if options.kind != "multi_worker":
        return [], 0
    try:
        cluster = json.loads(os.environ.get("TF_CONFIG") or "{}")
        addresses = list(cluster["cluster"]["worker"])
        worker_index = int(cluster["task"]["index"])
        if cluster["task"]["type"] != "worker" or not 0 <= worker_index < len(addresses):
            raise ValueError(f"task {cluster['task']} is not one of {len(addresses)} workers")
    except (KeyError, ValueError, TypeError) as error:
        raise UserError(
            "--strategy multi_worker: the environment variable TF_CONFIG does not describe a "
            f"cluster ({error!r}); set it in each process, such as TF_CONFIG="
            """'{"cluster": {"worker": ["host1:2222", "host2:2222"]}, """
            """"task": {"type": "worker", "index": 0}}'"""
        ) from None
    if options.gpus is not None:
        raise UserError("--devices is for one machine; set CUDA_VISIBLE_DEVICES on each")
    return addresses, worker_index


def _chosen(available: list[Any], options: DeviceOptions) -> list[Any]:
    """Returns the devices that train, one a replica."""
    is_single = options.kind == "single"
    wanted = options.gpus or (1 if is_single else len(available))
    if is_single and wanted > 1:
        raise UserError(f"--strategy single trains on one device, --devices says {wanted}")
    if wanted > len(available):
        raise UserError(
            f"--devices {wanted}: there are {len(available)} devices "
            f"({', '.join(map(str, available))}); use fewer, or --cpu_devices to try replicas on "
            "the CPU"
        )
    return available[:wanted]


def set_seed(seed: int) -> None:
    """Makes everything random in Keras depend on a seed."""
    import keras

    if keras.backend.backend() == "tensorflow":
        keras.utils.set_random_seed(seed)
    else:
        # Keras' own function imports TensorFlow wherever it is installed.
        random.seed(seed)
        np.random.seed(seed)


def versions() -> dict[str, str]:
    """Returns the versions of Python, Keras, the backend and NumPy, by name."""
    import keras

    names = ("keras", keras.backend.backend(), "numpy")
    found = {name: importlib.metadata.version(name) for name in names}
    return {"python": sys.version.split()[0], **found}


def _cpu_computes_in_bfloat16() -> bool:
    """Tells whether the CPU multiplies matrices in bfloat16 (Intel's AMX), by oneDNN.

    Without that unit TensorFlow emulates bfloat16, which is slower than float32.
    """
    # The switch that TensorFlow reads; without oneDNN it does not use the unit.
    if os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "0":
        return False
    with contextlib.suppress(OSError):
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("flags")[2]
        return "amx_bf16" in flags.partition("\n")[0].split()
    return False
