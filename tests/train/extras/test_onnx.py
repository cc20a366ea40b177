import numpy as np
import pytest
from marked_images import export_untrained

from train.extras import onnx
from train.machine.errors import TrainingError
from train.networks.export import answer

pytestmark = pytest.mark.slow

SHAPE = (32, 33, 1)


@pytest.mark.parametrize("name", ["convnet", "efficientnet_lite0"])
def test_onnx_predicts_the_same_of_any_number_of_images(name, tmp_path, monkeypatch):
    runtime = pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    model, _ = export_untrained(tmp_path, SHAPE, model=name, weights="none")
    onnx.write(tmp_path / "export")
    session = runtime.InferenceSession(tmp_path / "export" / "model.onnx")
    for count in (1, 5):
        images = np.random.default_rng(1).integers(256, size=(count, *SHAPE), dtype=np.uint8)
        (found,) = session.run(None, {"image": images})
        np.testing.assert_allclose(found, answer(model, images), atol=1e-5)
    monkeypatch.setattr(onnx, "convert", lambda model, path, images: np.full((8, 4), 0.2))
    with pytest.raises(TrainingError, match=r"model\.onnx, loaded again, predicts something else"):
        onnx.write(tmp_path / "export")
