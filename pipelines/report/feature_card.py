"""The card of a dataset of feature maps: an HTML file about how they were computed."""

from __future__ import annotations

from pathlib import Path

from tfrecord_io.auditing import pages
from tfrecord_io.manifest import Manifest


def render(dataset: Manifest) -> str:
    """Returns the card as HTML, from the manifest as it will be written."""
    trunk, images = dataset.source["trunk"], dataset.source["dataset"]
    height, width, channels = dataset.image_shape
    stride = dataset.layout.stride
    facts = {
        "Dataset of images": f"{images['name']}, fingerprint {images['fingerprint'][:12]}…",
        "Network": f"{trunk['model']}, weights {trunk['weights']}, frozen up to {trunk['layer']}",
        "Trunk": f"trunk.keras, SHA-256 {trunk['sha256'][:12]}…",
        "Image": "×".join(map(str, trunk["image_shape"])) + " uint8",
        "Feature map": f"{height}×{width}×{channels} {dataset.dtype}, {stride:,} bytes an example",
        "Size": f"{dataset.num_bytes / 1e6:,.1f} MB",
        "Fingerprint": dataset.fingerprint,
        "Computed by": "; ".join(
            ", ".join(f"{name} {value}" for name, value in computed_by.items())
            for computed_by in dataset.source["computed_by"]
        ),
    }
    template = pages.environment(Path(__file__).parent).get_template("features.html.jinja")
    return template.render(
        dataset=dataset,
        images=images["name"],
        network=trunk["model"],
        facts=facts,
        ledger=dataset.ledger,
    )
