"""What do input and augmentation cost on a GPU? One command, without network: a table and JSON.

    python benchmarks/gpu.py --backend jax --models small_resnet resnet50 [--quick]

It draws its own data under --work and needs JAX or TensorFlow (it measures with each that is
installed). On one H200, small_resnet took 95 s on JAX, most of it to compile; efficientnet_lite0
compiles for more than a minute. Figures are printed as soon as they are known. `--quick` tries all
of it on a CPU. Four ways of feeding the same compiled step take turns, and medians count:

- device: one batch that lies on the device, the limit.
- reader: the mapped shards, as in training.
- decode: JPEGs of 512x496, decoded and resized in each step by the build's own code, on all cores.
- grain: the same by worker processes of Grain, one a core, without TensorFlow.

Each measurement is a process of its own, so that one that fails (memory) costs its row alone, and
a peak of memory is of one network. These steps are bare: no augmentation, SGD, one output. Those
"as trained" have all defaults.
"""

from __future__ import annotations

import argparse
import collections
import functools
import importlib.metadata
import importlib.util
import itertools
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
# The packages need not be installed: what builds a dataset is not wanted here.
sys.path.insert(0, str(ROOT))

from train.machine import console  # noqa: E402

console.set_defaults()
with console.hide_native_noise():
    import numpy as np
    import psutil
    from read_data import LABEL_NAMES, ReadData, decode_scan, draw_records, draw_scans

    from tfrecord_io.decoding.options import Preprocessing
    from tfrecord_io.stores.ahead import map_ahead
    from train.data import augmentation
    from train.training.config import TrainConfig
    from train.training.monitors import memory_megabytes
    from train.training.preview import prepare_steps, time_rounds
    from train.training.session import Session, session_of
    from train.training.steps import Steps

MODELS = ("small_resnet", "efficientnet_lite0", "vgg16", "resnet50")
WAYS = ("device", "reader", "decode", "grain")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", choices=("jax", "tensorflow"), help="[each that is installed]")
    parser.add_argument("--models", nargs="+", default=MODELS, metavar="NAME")
    parser.add_argument("--batch_size", type=int, default=256, help="of a GPU [256]")
    parser.add_argument("--image_size", type=int, default=224, help="[224]")
    parser.add_argument("--num_images", type=int, default=16_384, help="[16384, 0.8 GB]")
    parser.add_argument("--precision", default="bfloat16", help="[bfloat16]")
    parser.add_argument("--steps", type=int, default=20, help="of a round [20]")
    parser.add_argument("--rounds", type=int, default=3, help="[3]")
    parser.add_argument("--work", default="data/gpu", help="folder of the drawn data [data/gpu]")
    parser.add_argument("--output", default="gpu.json", help="JSON file of all figures [gpu.json]")
    parser.add_argument("--quick", action="store_true", help="a tiny network and few tiny images")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.models = ("convnet",)
        arguments.batch_size, arguments.image_size, arguments.num_images = 8, 32, 64
        arguments.steps, arguments.rounds, arguments.precision = 2, 1, "float32"
    if arguments.measure:
        # One measurement, in a process that `measure_backend` started.
        name, *values = arguments.measure
        print(json.dumps(_MEASUREMENTS[name](arguments, *values)))
        return 0
    started = time.perf_counter()
    data = read_data(arguments)
    shape = (arguments.image_size, arguments.image_size, 1)
    draw_records(data.records, arguments.num_images, shape)
    draw_scans(data)
    installed = [name for name in ("jax", "tensorflow") if importlib.util.find_spec(name)]
    backends = [arguments.backend] if arguments.backend else installed
    results = [measure_backend(backend, arguments) for backend in backends]
    content = {
        "machine": {"system": platform.platform(), "cores": os.cpu_count()},
        "settings": {name: getattr(arguments, name) for name in _SETTINGS},
        "backends": results,
    }
    Path(arguments.output).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    for result in results:
        print(describe(result, arguments))
    print(f"All figures are in {arguments.output}, after {time.perf_counter() - started:.0f} s")
    return 0


_SETTINGS = ("models", "batch_size", "image_size", "num_images", "precision", "steps", "rounds")


def read_data(arguments: argparse.Namespace) -> ReadData:
    work = Path(arguments.work)
    return ReadData(work / f"records-{arguments.num_images}-{arguments.image_size}", work)


def measure_backend(backend: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns all figures of a backend, each from a process of its own."""

    def measure(name: str, *values: object) -> dict[str, Any]:
        shown = [name, *map(str, values)]
        print(f"measuring {backend}: {' '.join(shown)}", file=sys.stderr, flush=True)
        done = subprocess.run(
            # Not as the script: Grain's workers would import it again, and so TensorFlow.
            [sys.executable, "-c", "import gpu; gpu.main()", *sys.argv[1:], "--measure", *shown],
            env=environment(KERAS_BACKEND=backend),
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            return {"failed": f"exit code {done.returncode}"}
        figures = done.stdout.splitlines()[-1]
        print(figures, file=sys.stderr, flush=True)  # a run that is cut short keeps them
        return json.loads(figures)

    facts = measure("devices")
    count = len(facts.get("devices", "1"))
    # One, twice as many each time, and all.
    replicas = sorted({*(1 << power for power in range(count.bit_length())), count})
    return {
        "backend": backend,
        **facts,
        "input": measure("input"),
        "models": [
            {
                "model": model,
                "replicas": number,
                **measure("model", model, number),
                "as_trained": measure("trained", model, number),
            }
            for model, number in itertools.product(arguments.models, replicas)
        ],
    }


def environment(**variables: str) -> dict[str, str]:
    paths = [str(ROOT), str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    found = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    return found | {"TF_CPP_MIN_LOG_LEVEL": "2"} | variables


def config_of(arguments: argparse.Namespace, model: str, **settings: Any) -> TrainConfig:
    return TrainConfig.of(
        data=str(read_data(arguments).records),
        model=model,
        weights="none",
        replica_batch_size=arguments.batch_size,
        precision=arguments.precision,
        **settings,
    )


#: Settings of a bare step.
BARE: dict[str, Any] = {
    "optimizer": "sgd",
    "ema_decay": 0.0,
    "augment": False,
    "mixup": 0.0,
    "label_smoothing": 0.0,
}


def session_on(
    arguments: argparse.Namespace, model: str, replicas: int, settings: dict[str, Any] = BARE
) -> Session:
    """Returns a training on so many devices; the batch of each stays."""
    return session_of(config_of(arguments, model, gpus=replicas, **settings))


def measure_devices(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the names of the devices and the versions of the software."""
    from train.machine.devices import configure_devices

    devices = configure_devices(config_of(arguments, "convnet").devices)
    if devices.backend == "jax":
        names = [device.device_kind for device in devices.mesh.devices.flat]
    else:
        import tensorflow as tf

        gpus = tf.config.list_physical_devices("GPU")
        details = [tf.config.experimental.get_device_details(gpu) for gpu in gpus]
        names = [detail.get("device_name", "GPU") for detail in details] or list(devices.names)
    packages = (devices.backend, "keras", "numpy")
    versions = {name: importlib.metadata.version(name) for name in packages}
    return {"devices": names, "versions": {"python": platform.python_version(), **versions}}


def measure_input(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns images/s onto one device while nothing is trained."""
    num_batches = arguments.steps * arguments.rounds
    session, _, steps = prepare_steps(
        session_on(arguments, "convnet", 1), num_steps=num_batches + 2
    )
    batches = steps.iterate(session.training_batches(0))
    wait_for(next(batches))
    started, worked = time.perf_counter(), time.process_time()
    for _ in range(num_batches):
        wait_for(next(batches))
    seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - worked
    return {
        "images_per_second": num_batches * arguments.batch_size / seconds,
        "cpu_cores": cpu_seconds / seconds,
    }


def wait_for(batch: Any) -> None:
    """Waits until a batch lies on its device."""
    if os.environ["KERAS_BACKEND"] == "jax":
        import jax

        jax.block_until_ready(batch)
    else:
        import tensorflow as tf

        tf.test.experimental.sync_devices()


def measure_model(arguments: argparse.Namespace, model: str, replicas: str) -> dict[str, Any]:
    """Returns images/s by way of feeding; with several devices without decoding."""
    num_steps, num_rounds = arguments.steps, arguments.rounds
    session, _, steps = prepare_steps(
        session_on(arguments, model, int(replicas)),
        # One step more, for the time to the first.
        num_steps=(num_rounds + 1) * num_steps + 1,
    )
    sources = {
        "reader": steps.iterate(session.training_batches(0)),
        "device": itertools.repeat(next(steps.iterate(session.training_batches(0)))),
    }
    steps.train(sources["reader"])
    first_step = time.time() - psutil.Process().create_time()
    if replicas == "1":
        sources["decode"] = placed(session, steps, decoded_by_threads(arguments))
        sources["grain"] = placed(session, steps, decoded_by_grain(arguments))
    times = time_rounds(steps, sources, num_steps=num_steps, num_rounds=num_rounds)
    images = num_steps * (session.plan.config.input.global_batch_size or 0)
    return {
        "step_ms": 1000 * times["device"][0] / num_steps,
        "images_per_second": {name: images / seconds for name, (seconds, _) in times.items()},
        "input_wait_share": {name: share for name, (_, share) in times.items()},
        "first_step_seconds": first_step,
        **memory_megabytes(session.devices),
    }


def measure_trained(arguments: argparse.Namespace, model: str, replicas: str) -> dict[str, Any]:
    """Returns the time of a step with all defaults."""
    num_steps, num_rounds = arguments.steps, arguments.rounds
    given = session_on(arguments, model, int(replicas), {})
    session, _, steps = prepare_steps(given, num_steps=(num_rounds + 1) * num_steps)
    batch = next(steps.iterate(session.training_batches(0)))
    device = {"device": itertools.repeat(batch)}
    times = time_rounds(steps, device, num_steps=num_steps, num_rounds=num_rounds)
    return {"step_ms": 1000 * times["device"][0] / num_steps}


def decoded_by_threads(arguments: argparse.Namespace) -> Iterator[np.ndarray]:
    """Yields batches of images that are decoded when they are wanted, by a thread a core."""
    names, decode = itertools.cycle(scans_of(arguments)), decoder(arguments)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        ahead: collections.deque[Any] = collections.deque()
        while True:
            # `map` submits all of a batch at once, and waits when it is read.
            while len(ahead) < 3:
                ahead.append(pool.map(decode, itertools.islice(names, arguments.batch_size)))
            yield np.stack(list(ahead.popleft()))


def decoded_by_grain(arguments: argparse.Namespace) -> Iterator[np.ndarray]:
    """Yields the same by a worker process a core; each makes whole batches, as Grain advises."""
    import absl.flags
    import grain.python as grain

    absl.flags.FLAGS.mark_as_parsed()  # Grain's workers want it

    dataset = grain.MapDataset.source(scans_of(arguments)).shuffle(seed=0).repeat()
    dataset = dataset.map(decoder(arguments)).batch(arguments.batch_size).to_iter_dataset()
    workers = grain.MultiprocessingOptions(num_workers=os.cpu_count() or 1)
    return iter(dataset.mp_prefetch(workers))


def scans_of(arguments: argparse.Namespace) -> list[str]:
    return sorted(map(str, read_data(arguments).scans.rglob("*.jpeg")))


def decoder(arguments: argparse.Namespace) -> Callable[[str], np.ndarray]:
    size = arguments.image_size
    return functools.partial(decode_scan, preprocessing=Preprocessing(height=size, width=size))


def placed(session: Session, steps: Steps, batches: Iterator[np.ndarray]) -> Any:
    """Returns batches of images as a step takes them, on its device."""
    size = session.plan.config.input.global_batch_size or 0
    labels = np.eye(len(LABEL_NAMES), dtype=np.float32)[np.arange(size) % len(LABEL_NAMES)]
    weights = np.full(size, 1 / size, np.float32)
    draws = np.zeros((size, augmentation.NUM_DRAWS), np.float32)
    whole = ((images, labels, weights, draws) for images in batches)
    if session.devices.backend == "jax":
        import jax

        put = functools.partial(jax.device_put, device=session.devices.sharding("batch"))
        return map_ahead(put, whole, 2, num_threads=1)
    import tensorflow as tf

    signature = tuple(tf.TensorSpec(part.shape, part.dtype) for part in next(whole))
    dataset = tf.data.Dataset.from_generator(lambda: whole, output_signature=signature)
    return steps.iterate(dataset.prefetch(2))


_MEASUREMENTS = {
    "devices": measure_devices,
    "input": measure_input,
    "model": measure_model,
    "trained": measure_trained,
}


def describe(result: dict[str, Any], arguments: argparse.Namespace) -> str:
    """Returns the figures of a backend as Markdown."""
    if "failed" in result:
        return f"{result['backend']}: no device could be set up ({result['failed']})"
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    lines = [
        f"\n### {result['backend']} on {len(result['devices'])} x {result['devices'][0]}\n",
        f"{versions}; {os.cpu_count()} CPU cores; {arguments.image_size} px, "
        f"{arguments.precision}, {arguments.batch_size} images a device.\n",
    ]
    one = result["input"]
    if "failed" not in one:
        lines.append(
            f"Input alone: {one['images_per_second']:,.0f} images/s onto the device, with "
            f"{one['cpu_cores']:.2f} CPU cores."
        )
    lines += [
        "",
        "| network | devices | step, ms | device, images/s | reader | decode | grain "
        "| input wait | first step, s | device memory, MB | as trained |",
        "| --- |" + " --- |" * 10,
    ]
    for row in result["models"]:
        head = f"| {row['model']} | {row['replicas']} |"
        if "failed" in row:
            lines.append(f"{head} failed: {row['failed']} |" + " |" * 8)
            continue
        speeds = row["images_per_second"]
        ratios = " | ".join(
            f"{speeds[way] / speeds['device']:.3f}" if way in speeds else "" for way in WAYS[1:]
        )
        memory = f"{row['peak_gpu_mb']:,.0f}" if "peak_gpu_mb" in row else ""
        lines.append(
            f"{head} {row['step_ms']:.1f} | {speeds['device']:,.0f} | {ratios} "
            f"| {row['input_wait_share']['reader']:.2%} | {row['first_step_seconds']:.1f} "
            f"| {memory} | {_as_trained(row)} |"
        )
    lines.append(
        "\nas trained: with all defaults; it, reader, decode and grain: as shares of the images/s "
        "of a batch on the device."
    )
    return "\n".join(lines)


def _as_trained(row: dict[str, Any]) -> str:
    trained = row["as_trained"]
    return "failed" if "failed" in trained else f"{row['step_ms'] / trained['step_ms']:.3f}"


if __name__ == "__main__":
    sys.exit(main())
