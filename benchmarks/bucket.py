"""How fast are batches read from a bucket, with and without room for it on this machine's disk?

    python benchmarks/bucket.py [--num_images 20480] [--peers_python /path/to/python]

The store is `range_server.py` on loopback, in its own process on the same cores: 10 ms to the first
byte, and 125 MB/s for all connections together (some ways ask for no limit). The dataset is drawn,
images of 224x224x1. Each row is a process of its own with an empty cache. Speeds are told as shares
of the store's bandwidth or of the memory map of a local copy, measured in the same run.

The peers (MosaicML Streaming, LitData, WebDataset) read the same images from the same store, with a
cache of 25 %; they run with the Python that `--peers_python` names, and are left out where it lacks
their packages or cannot read the store.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import range_server
from read_data import WRITERS, ReadData, draw_records
from sample_archive import WORK_DIR

BATCH_SIZE = 64
MB_PER_SECOND, LATENCY_MS = 125.0, 10.0
PEERS = ("mosaicml", "litdata", "webdataset")


def read(spec: dict[str, Any]) -> dict[str, Any]:
    """Reads the epochs that a row asks for, in this process.

    Returns:
        `first`: seconds from opening to the first batch; `seconds` and `bytes` of each epoch, the
        bytes sent by the store; `hash` of all images and labels; `anonymous_mb`, by which the
        process's own memory grew.
    """
    way = spec["way"]
    importlib.import_module({"tf.data": "tensorflow", "jax": "jax"}.get(way, "numpy"))
    batches_of = peer_batches if way in PEERS else own_batches
    importlib.import_module("tfrecord_io.reading.batches")
    before = _anonymous_bytes()
    most = [before]
    threading.Thread(target=_watch, args=(most,), daemon=True).start()
    digest = hashlib.blake2b(digest_size=8)
    steps_per_epoch = spec["num_images"] // BATCH_SIZE
    result: dict[str, Any] = {"seconds": [], "bytes": []}
    _take_count(spec)
    started = begun = time.perf_counter()
    for step, (image, label) in enumerate(batches_of(spec), 1):
        if step == 1:
            result["first"] = time.perf_counter() - started
        if spec.get("hash"):
            digest.update(image)
            digest.update(label)
        if step % steps_per_epoch == 0 or step == spec.get("steps"):
            now = time.perf_counter()
            result["seconds"].append(now - begun)
            result["bytes"].append(_take_count(spec))
            begun = time.perf_counter()
        if step == spec.get("steps", spec["epochs"] * steps_per_epoch):
            break
    result["anonymous_mb"] = (most[0] - before) / 1e6
    return result | {"hash": digest.hexdigest()}


def own_batches(spec: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yields (image, label) of our readers, as NumPy arrays."""
    options = {
        "cache_dir": spec["cache"],
        "cache_gb": spec["cache_bytes"] / 1e9,
        "split": "train",
        "batch_size": BATCH_SIZE,
        "seed": 1,
        "epochs": None,
        "start_step": spec.get("start_step", 0),
        "num_replicas": spec.get("num_replicas", 1),
        "replica_index": spec.get("replica_index", 0),
    }
    if spec["way"] == "tf.data":
        from tfrecord_io.reading.reader import make_dataset

        for image, label in make_dataset(spec["data"], **options):
            yield image.numpy(), label.numpy()
        return
    from tfrecord_io.reading.batches import make_batches

    for image, label in make_batches(spec["data"], **options):
        if spec["way"] == "jax":
            import jax
            import numpy as np

            image, label = (np.asarray(jax.device_put(part)) for part in (image, label))
        yield image, label


def peer_batches(spec: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yields (image, label) of another reader, epoch after epoch."""
    import torch.utils.data

    os.environ |= {"AWS_ACCESS_KEY_ID": "nobody", "AWS_SECRET_ACCESS_KEY": "nothing",
                   "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1",
                   "S3_ENDPOINT_URL": spec["endpoint"],
                   "AWS_ENDPOINT_URL": spec["endpoint"]}  # fmt: skip
    folder = Path(spec["data"]).name
    remote = f"s3://{range_server.BUCKET}/{folder}"
    dataset: Any
    if spec["way"] == "mosaicml":
        import streaming

        dataset = streaming.StreamingDataset(
            remote=remote, local=spec["cache"], shuffle=True, batch_size=BATCH_SIZE,
            cache_limit=int(spec["cache_bytes"]),
        )  # fmt: skip
    elif spec["way"] == "litdata":
        import litdata

        dataset = litdata.StreamingDataset(
            remote, cache_dir=spec["cache"], shuffle=True, drop_last=True,
            max_cache_size=f"{int(spec['cache_bytes'] / 1e6)}MB",
            storage_options={"endpoint_url": spec["endpoint"]},
        )  # fmt: skip
        loader = litdata.StreamingDataLoader(
            dataset, batch_size=BATCH_SIZE, num_workers=2, drop_last=True
        )
        while True:
            for batch in loader:
                yield batch["image"].numpy(), batch["label"].numpy()
    else:
        import webdataset

        names = sorted(path.name for path in Path(spec["data"]).glob("*.tar"))
        urls = [f"{spec['endpoint']}/{range_server.BUCKET}/{folder}/{name}" for name in names]
        # Its cache cannot be limited to a size, so it gets none.
        dataset = (
            webdataset.WebDataset(urls, shardshuffle=len(urls), seed=1)
            .shuffle(1000).decode().to_tuple("npy", "cls").batched(BATCH_SIZE, partial=False)
        )  # fmt: skip
    batch_size = None if spec["way"] == "webdataset" else BATCH_SIZE
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=batch_size, num_workers=2, persistent_workers=True
    )
    while True:
        for batch in loader:
            image, label = batch.values() if isinstance(batch, dict) else batch
            yield image, label


class Rows:
    """Runs rows against one store and keeps their figures.

    Attributes:
        bandwidth: images a second of the limited store.
    """

    def __init__(self, data: ReadData, work: Path, peers_python: str | None) -> None:
        self.data, self.work, self._peers_python = data, work, peers_python
        stride = data.manifest.layout.stride
        self.num_bytes = stride * data.num_examples
        self.bandwidth = MB_PER_SECOND * 1e6 / stride

    def run(
        self, server: range_server.RunningServer | None, *, fresh: bool = True, **spec: Any
    ) -> dict[str, Any]:
        """Returns what `read` returns in a process of its own; raises RuntimeError if it fails."""
        folder = self.work / "cache"
        if fresh:
            shutil.rmtree(folder, ignore_errors=True)
        spec.setdefault("way", "numpy")
        path = self.data.peer(spec["way"]) if spec["way"] in PEERS else self.data.records
        relative = path.relative_to(self.work)
        url = f"{server.endpoint}/{range_server.BUCKET}/{relative}" if server else str(path)
        spec = {
            "data": str(path) if spec["way"] in PEERS else url,
            "endpoint": server.endpoint if server else None,
            "num_images": self.data.num_examples,
            "cache": str(folder),
            "cache_bytes": spec.pop("share", 2.0) * self.num_bytes,
            "epochs": 1,
        } | spec
        python = self._peers_python if spec["way"] in PEERS else None
        done = subprocess.run(
            [python or sys.executable, __file__, "--row", json.dumps(spec)],
            capture_output=True, text=True, timeout=300,
            env=os.environ | {"no_proxy": "127.0.0.1", "TF_CPP_MIN_LOG_LEVEL": "3",
                              "PYTHONPATH": str(Path(__file__).parents[1])},
        )  # fmt: skip
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if not lines:
            raise RuntimeError((done.stderr.strip().splitlines() or ["no reason given"])[-1])
        result = json.loads(lines[-1])
        result["rates"] = [self.data.num_examples / seconds for seconds in result["seconds"]]
        result["shares"] = [num_bytes / self.num_bytes for num_bytes in result["bytes"]]
        return result


def show(what: str, value: float, bar: float, *, least: bool, unit: str = "") -> None:
    """Prints a row: what was measured, and whether it reaches its bar."""
    reached = value >= bar if least else value <= bar
    sign = "≥" if least else "≤"
    verdict = "reached" if reached else "MISSED"
    print(f"| {what} | {value:,.3g}{unit} | {sign} {bar:,.4g}{unit} | {verdict} |", flush=True)


def limited(rows: Rows, server: range_server.RunningServer, own_speed: float) -> float:
    """Measures with the limited store; returns images a second of a second epoch at 25 %."""
    room = rows.run(server, epochs=2)
    show("room for all, epoch 1: speed / bandwidth", room["rates"][0] / rows.bandwidth, 0.85,
         least=True)  # fmt: skip
    show("bytes fetched / dataset", room["shares"][0], 1.05, least=False)
    show("epoch 2: bytes fetched", room["bytes"][1], 0, least=False)
    show("epoch 2: speed / memory map", room["rates"][1] / own_speed, 0.8, least=True)
    show("own memory grows by", room["anonymous_mb"], 400, least=False, unit=" MB")
    quarter = rows.run(server, epochs=2, share=0.25)
    show("cache of 25 %, epoch 2: bytes / dataset", quarter["shares"][1], 0.8, least=False)
    show("speed / bandwidth", quarter["rates"][1] / rows.bandwidth, 1.0, least=True)
    show("own memory grows by", quarter["anonymous_mb"], 400, least=False, unit=" MB")
    for name, step in (("first batch", 0), ("first batch at step 1,000,000", 1_000_000)):
        first = rows.run(server, start_step=step, steps=1)["first"]
        show(name, first, 1.5, least=False, unit=" s")
    return quarter["rates"][1]


def unlimited(rows: Rows, server: range_server.RunningServer) -> None:
    """Measures with a store that is only 10 ms away."""
    for way, bar in (("numpy", 5000), ("tf.data", 3000)):
        own_speed = rows.run(None, way=way, epochs=2)["rates"][1]
        first, second = rows.run(server, way=way, epochs=2)["rates"]
        show(f"no limit, epoch 1, {way}: images/s", first, bar, least=True)
        show(f"epoch 2, {way}: speed / memory map", second / own_speed, 0.8, least=True)


def orders(rows: Rows, server: range_server.RunningServer) -> None:
    """Compares the bytes of two epochs with those of the local memory map."""
    middle = rows.data.num_examples // BATCH_SIZE // 2
    cases: list[dict[str, Any]] = [{"way": way} for way in ("numpy", "tf.data", "jax")]
    cases += [{"way": "numpy", "start_step": middle}]
    cases += [{"way": way, "num_replicas": 2, "replica_index": 1} for way in ("numpy", "tf.data")]
    wanted: dict[str, dict[str, Any]] = {}
    for case in cases:
        slices = {**case, "way": "numpy"}
        local = wanted.get(str(slices)) or rows.run(None, **slices, epochs=2, hash=True)
        wanted[str(slices)] = local
        for share in (2.0, 0.25):
            remote = rows.run(server, **case, epochs=2, hash=True, share=share)
            same = float(remote["hash"] == local["hash"])
            show(f"order as the memory map's, cache {share:g}: {case}", same, 1, least=True)


def peers(rows: Rows, server: range_server.RunningServer, ours: float) -> None:
    """Measures the peers at 25 %."""
    speeds = {}
    for name in PEERS:
        try:
            subprocess.run(
                [rows._peers_python or sys.executable, __file__, "--write", name,
                 str(rows.data.records), str(rows.work)],
                check=True, capture_output=True, text=True,
            )  # fmt: skip
            found = rows.run(server, way=name, epochs=2, share=0.25)
        except subprocess.CalledProcessError as error:
            print(f"| {name} | left out: {error.stderr.strip().splitlines()[-1]} | | |")
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            print(f"| {name} | left out: {error} | | |")
        else:
            speeds[name] = found["rates"][1]
            print(f"| {name}, 25 %, epoch 2: images/s | {speeds[name]:,.0f}, "
                  f"{found['shares'][1]:.2f} of the bytes | | |", flush=True)  # fmt: skip
    if speeds:
        show("ours / the best peer", ours / max(speeds.values()), 1.2, least=True)


def _take_count(spec: dict[str, Any]) -> int:
    """Returns the bytes that the store sent since the last call."""
    if not spec["endpoint"]:
        return 0
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{spec['endpoint']}/count", timeout=10) as answer:
        return int(answer.read())


def _anonymous_bytes() -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = re.search(r"RssAnon:\s+(\d+) kB", status)
    return 1024 * int(found[1]) if found else 0


def _watch(most: list[int]) -> None:
    while True:
        most[0] = max(most[0], _anonymous_bytes())
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--num_images", type=int, default=320 * BATCH_SIZE)
    parser.add_argument("--peers_python", help="a Python that has the packages of the peers")
    parser.add_argument("--parts", nargs="+", default=["limited", "unlimited", "orders", "peers"])
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--write", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row:
        print(json.dumps(read(json.loads(args.row))))
        return
    if args.write:
        name, records, folder = args.write
        WRITERS[name](ReadData(Path(records), Path(folder)))
        return
    work = WORK_DIR.absolute() / "bucket"
    records = draw_records(work / f"records-{args.num_images}", args.num_images)
    rows = Rows(ReadData(records, work), work, args.peers_python)
    own_speed = rows.run(None, epochs=2)["rates"][1]
    print(f"{args.num_images:,} images; the store gives {rows.bandwidth:,.0f} images/s", end="")
    print(f", the memory map {own_speed:,.0f}\n\n| what | measured | bar | |\n|---|---|---|---|")
    ours = 0.0
    if {"limited", "peers"} & {*args.parts}:
        with range_server.running(work, LATENCY_MS, MB_PER_SECOND) as server:
            if "limited" in args.parts:
                ours = limited(rows, server, own_speed)
            if "peers" in args.parts:
                ours = ours or rows.run(server, epochs=2, share=0.25)["rates"][1]
                peers(rows, server, ours)
    with range_server.running(work, LATENCY_MS) as server:
        if "unlimited" in args.parts:
            unlimited(rows, server)
        if "orders" in args.parts:
            orders(rows, server)
    shutil.rmtree(work / "cache", ignore_errors=True)


if __name__ == "__main__":
    main()
